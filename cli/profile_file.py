"""Reads a profile from a YAML file and says, field by field, what is wrong with it."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paceline.cli.errors import CliError, ExitCode
from paceline.operator.api.v1alpha1 import (
    API_VERSION,
    DNS_LABEL_PATTERN,
    DNS_SUBDOMAIN_PATTERN,
    KIND,
    QUANTITY_PATTERN,
    SOURCE_PATTERN,
    InferenceProfile,
)
from paceline.operator.specs.engine_command import problems

MAX_BYTES = 1 << 20
"""Upper bound of a profile's file, that of an object in Kubernetes."""

_PATTERNS: Final = {
    DNS_LABEL_PATTERN: "should be lower-case letters, digits and -, and begin and end with a letter or digit",
    DNS_SUBDOMAIN_PATTERN: "should be lower-case letters, digits, - and ., and begin and end with a letter or digit",
    SOURCE_PATTERN: "should be hf://org/name, file:///folder or pvc://claim/folder",
    QUANTITY_PATTERN: "should be a quantity, as in 500m, 4 or 16Gi",
}
"""The API's patterns in words."""


def load_profile(path: Path) -> InferenceProfile:
    """Read and validate the profile in a file. Raises CliError with every problem found."""
    document = _document(path, _text(path))
    _check_kind(path, document)
    try:
        profile = InferenceProfile.model_validate(document)
    except ValidationError as error:
        raise _invalid(path, [_problem(details) for details in error.errors()]) from None
    found = problems(profile.spec)
    if found:
        raise _invalid(path, found)
    return profile


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _unusable(f"{path} is larger than {MAX_BYTES} bytes", "A profile is a short YAML file.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _unusable(f"there is no file {path}", "Give the path of a profile; examples/ holds some.") from None
    except IsADirectoryError:
        raise _unusable(f"{path} is a folder", "Give the path of one profile's YAML file.") from None
    except UnicodeDecodeError as error:
        raise _unusable(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", None) from None
    except OSError as error:
        raise _unusable(f"cannot read {path}: {error.strerror}", None) from None


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _unusable(f"{path} is not valid YAML{place}: {error.problem}", None) from None
    except (yaml.YAMLError, ValueError) as error:
        raise _unusable(f"{path} is not valid YAML: {error}", None) from None
    if not documents:
        raise _unusable(f"{path} is empty", f"Write one {KIND} there; examples/ holds some.")
    if len(documents) > 1:
        raise _unusable(
            f"{path} holds {len(documents)} documents, expected one", "Split it and start one profile at a time."
        )
    if not isinstance(documents[0], dict):
        kind = "a list" if isinstance(documents[0], list) else "a single value"
        raise _unusable(
            f"{path} holds {kind}, expected a mapping with the fields apiVersion, kind, metadata, spec", None
        )
    return documents[0]


def _check_kind(path: Path, document: dict[str, Any]) -> None:
    # Asked first and required: with another kind every further complaint would mislead.
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        found = document.get(field)
        if found != expected:
            said = f"is {found!r}" if field in document else "is missing"
            raise _unusable(f"{path}: {field} {said}, expected {expected}", f"Write `{field}: {expected}`.")


def _problem(details: ErrorDetails) -> str:
    where = _field_path(details["loc"])
    message = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    value = details["input"]
    if details["type"] == "extra_forbidden":
        return f"{where}: there is no such field{_suggestion(details['loc'])}"
    if details["type"] == "missing":
        return f"{where}: is required"
    if details["type"] == "string_pattern_mismatch":
        message = _PATTERNS.get(details["ctx"]["pattern"], message)
    shown = f" (found {value!r})" if value is None or isinstance(value, str | int | float) else ""
    return f"{where}: {message}{shown}"


def _field_path(location: tuple[int | str, ...]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".") or "the profile"


def _suggestion(location: tuple[int | str, ...]) -> str:
    names = sorted(_field_names(InferenceProfile, location[:-1]))
    wanted = str(location[-1])
    # Compared without case, for a field written as in Python or all in capitals.
    by_folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(wanted.replace("_", "").casefold(), by_folded, n=1)
    if close:
        return f"; did you mean {by_folded[close[0]]}?"
    return f"; known here are {', '.join(names)}" if names else ""


def _field_names(model: type[BaseModel], location: tuple[int | str, ...]) -> Iterator[str]:
    """Yield the wire names of the fields of the type at a place below `model`."""
    if not location:
        yield from (field.alias or name for name, field in model.model_fields.items())
        return
    for name, field in model.model_fields.items():
        if location[0] in (name, field.alias):
            rest = tuple(part for part in location[1:] if isinstance(part, str))
            for inner in _models(field.annotation):
                yield from _field_names(inner, rest)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated, list, dict):
        for argument in get_args(annotation):
            yield from _models(argument)


def _invalid(path: Path, found: list[str]) -> CliError:
    count = "one problem" if len(found) == 1 else f"{len(found)} problems"
    lines = "\n".join(f"  {problem}" for problem in found)
    return _unusable(f"{path} has {count}:\n{lines}", "Nothing was started.")


def _unusable(message: str, advice: str | None) -> CliError:
    return CliError(message, advice=advice, code=ExitCode.INVALID)


class _Loader(yaml.SafeLoader):
    """The safe loader, but a repeated key is an error: the silent last one wins is how settings get lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping whose keys are all different."""
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

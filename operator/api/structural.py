"""From pydantic's JSON schema to Kubernetes' structural schema (apiextensions.k8s.io/v1).

A structural schema knows no `$ref`, no `null` type, no `const` and no `propertyNames`, and it says nothing about
unknown fields: the API server prunes those. See "Specifying a structural schema" in the Kubernetes documentation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]
Rules = Mapping[str, Sequence[Mapping[str, str]]]

_KEPT: Final = frozenset(
    {
        "type",
        "format",
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
        "required",
    }
)
_REFERENCE: Final = "#/$defs/"


def structural_schema(model: type[BaseModel], rules: Rules) -> Schema:
    """Return the structural schema of `model`; `rules` gives the CEL validations of a type by its class name.

    Raises ValueError for a construct that has no structural form (a union, a tuple, a recursive type).
    """
    source = model.model_json_schema(by_alias=True, mode="validation")
    definitions = source.get("$defs", {})
    return _Converter(definitions, rules).convert(source, model.__name__, ())


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], rules: Rules) -> None:
        self._definitions = definitions
        self._rules = rules

    def convert(self, node: Schema, type_name: str | None, seen: tuple[str, ...]) -> Schema:
        """Return `node` without references; `type_name` is the class that it came from, where it is one."""
        node, type_name = self._resolve(node, type_name, seen)
        seen = (*seen, type_name) if type_name else seen
        result: Schema = {}
        if description := node.get("description"):
            result["description"] = _one_line(description)
        result |= {key: value for key, value in node.items() if key in _KEPT or key.startswith("x-kubernetes-")}
        if "const" in node:
            result["enum"] = [node["const"]]
        if "type" not in result and "x-kubernetes-int-or-string" not in result:
            raise ValueError(f"no structural form for {node}")
        if "items" in node:
            result["items"] = self.convert(node["items"], None, seen)
        if "properties" in node:
            result["properties"] = {name: self._property(child, seen) for name, child in node["properties"].items()}
        elif isinstance(node.get("additionalProperties"), dict):
            result["additionalProperties"] = self.convert(node["additionalProperties"], None, seen)
        if type_name is not None and type_name in self._rules:
            result["x-kubernetes-validations"] = [dict(rule) for rule in self._rules[type_name]]
        return result

    def _property(self, node: Schema, seen: tuple[str, ...]) -> Schema:
        result = self.convert(node, None, seen)
        default = node.get("default")
        # An empty list or map adds nothing to an object. A nested object's default is written out: the API server
        # checks it against the rules before it would fill it.
        if "properties" in result:
            if default is not None:
                result["default"] = _filled(result)
        elif default not in (None, [], {}):
            result["default"] = default
        return result

    def _resolve(self, node: Schema, type_name: str | None, seen: tuple[str, ...]) -> tuple[Schema, str | None]:
        if "anyOf" in node:
            options = [option for option in node["anyOf"] if option.get("type") != "null"]
            if len(options) != 1:
                raise ValueError(f"a union has no structural form: {node}")
            outer = {key: value for key, value in node.items() if key != "anyOf"}
            return self._resolve(options[0] | outer, type_name, seen)
        if reference := node.get("$ref"):
            name = reference.removeprefix(_REFERENCE)
            if name in seen:
                raise ValueError(f"a recursive type has no structural form: {name}")
            outer = {key: value for key, value in node.items() if key != "$ref"}
            return self._resolve(self._definitions[name] | outer, name, seen)
        return node, type_name


def _filled(schema: Schema) -> Schema:
    return {name: child["default"] for name, child in schema["properties"].items() if "default" in child}


def _one_line(docstring: str) -> str:
    paragraphs = docstring.strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

"""Who owns which field of a profile, by the field managers that the API server keeps. Pure.

The API server's own rule is that a field is owned by whoever wrote its value last, and co-owned by those who applied
the same one. That makes an owner of everyone who ever ran `kubectl patch`, and of who created a profile, for all of its
defaults. They hold on to nothing: an owner in our sense declares a field, and will bring it back.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from paceline.control_api.profiles.base import Part
from paceline.engine_ext.settings import PacingMode
from paceline.operator.api.v1alpha1 import GROUP

Path = tuple[str, ...]
"""A field's path, such as ("spec", "pacing", "mode")."""

MANAGER: Final = "paceline-control-api"
SET_BY: Final[Mapping[Part, str]] = {"pacing": f"{GROUP}/pacing-set-by", "coalescing": f"{GROUP}/coalescing-set-by"}
"""Annotations with who last set a part over the control API; they tell that it was, when we lost all of it."""

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""What client-side `kubectl apply`, and tools that do as it does, keep of the file that they applied."""


def leaves(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and value of every field without fields of its own."""
    for name, child in value.items():
        if isinstance(child, Mapping):
            yield from leaves(child, (*path, name))
        else:
            yield (*path, name), child


def owned_paths(manifest: Mapping[str, Any], manager: str = MANAGER) -> frozenset[Path]:
    """Return the fields below `spec` that a manager owns."""
    return frozenset(
        path for entry in _entries(manifest) if entry["manager"] == manager for path in _paths(entry["fieldsV1"])
    )


def owners(manifest: Mapping[str, Any], paths: frozenset[Path]) -> tuple[str, ...]:
    """Return the managers other than ours that own any of the fields, whatever they mean by it."""
    found = (entry["manager"] for entry in _entries(manifest) if paths.intersection(_paths(entry["fieldsV1"])))
    return tuple(sorted({manager for manager in found if manager != MANAGER}))


def declarers(manifest: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return who declares fields that `wanted`, a part of the profile, changes: the managers and their fields.

    A field is declared by whoever applied it on the server's side, and by the owner of one that stands in the file of
    the last client-side apply.
    """
    live = dict(leaves(manifest))
    changed = {path for path, value in leaves(wanted) if live.get(path) != value}
    filed = frozenset(path for path, _ in leaves(_last_applied(manifest)))
    found: dict[str, set[Path]] = {}
    for entry in _entries(manifest):
        if entry["manager"] == MANAGER:
            continue
        own = changed.intersection(_paths(entry["fieldsV1"]))
        declared = own if entry["operation"] == "Apply" else own & filed
        if declared:
            found.setdefault(entry["manager"], set()).update(declared)
    return {manager: tuple(sorted(".".join(path) for path in paths)) for manager, paths in sorted(found.items())}


def superseded_by(manifest: Mapping[str, Any], part: Part) -> tuple[str, ...]:
    """Return who changed the part after it was last set by us; nobody where it was never, or is still ours."""
    if SET_BY[part] not in manifest["metadata"].get("annotations", {}):
        return ()
    settings = manifest["spec"].get(part, {})
    # A promise without effect may stay behind from whoever made it.
    told = {name: value for name, value in settings.items() if name != "slo" or settings["mode"] == PacingMode.SLO}
    lost = frozenset(path for path, _ in leaves(told, ("spec", part))) - owned_paths(manifest)
    return owners(manifest, lost)


def _entries(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = manifest["metadata"].get("managedFields", ())
    return [entry for entry in entries if "fieldsV1" in entry and not entry.get("subresource")]


def _paths(fields: Mapping[str, Any]) -> frozenset[Path]:
    return frozenset(_walk(fields.get("f:spec", {}), ("spec",)))


def _walk(fields: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for name, child in fields.items():
        # Items of lists (k:, v:) and the marks of whole structs (.) are not among the live settings.
        if name.startswith("f:"):
            inner = (*path, name.removeprefix("f:"))
            yield from _walk(child, inner) if child else (inner,)


def _last_applied(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    text = manifest["metadata"].get("annotations", {}).get(LAST_APPLIED, "{}")
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, Mapping) else {}

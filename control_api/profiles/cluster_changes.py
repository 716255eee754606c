"""What is applied to a profile in a cluster, and what stands against it. Pure."""

from http import HTTPStatus
from typing import Any

from paceline.control_api.errors import FieldError, ProblemError
from paceline.control_api.profiles.base import COMMANDS, Change, Part, ProfileKey, in_force
from paceline.control_api.profiles.cluster_object import ClusterProfile, Manifest
from paceline.control_api.profiles.ownership import SET_BY, declarers, leaves, owned_paths
from paceline.engine_ext.settings import LiveModel
from paceline.operator.api.v1alpha1 import API_VERSION, KIND


def applied_manifest(before: ClusterProfile, change: Change) -> Manifest:
    """Return what is applied on the server's side for a change of the profile as it stands in `before`.

    All that our manager owns is in it, who set the other part included: server-side apply removes what a manager
    leaves out. The version makes a conflict of every change in between.
    """
    kept = before.manifest["metadata"].get("annotations", {})
    wanted = change.parts()
    if change.pacing is not None:
        wanted["pacing"] = in_force(change.pacing)
    authors = {
        mark: change.author if part in wanted else kept[mark]
        for part, mark in SET_BY.items()
        if part in wanted or mark in kept
    }
    metadata = {
        "namespace": before.key.namespace,
        "name": before.key.name,
        "uid": before.uid,
        "resourceVersion": before.version,
        "annotations": authors,
    }
    spec = {part: _part(before, part, wanted.get(part)) for part in SET_BY}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {name: part for name, part in spec.items() if part},
    }


def require_free(before: ClusterProfile, change: Change) -> None:
    """Let a change through that changes no field which another tool declares.

    Raises:
        ProblemError: 409 that names the tools and their fields.
    """
    wanted = {"spec": applied_manifest(before, change)["spec"]}
    held = declarers(before.manifest, wanted)
    if not held:
        return
    errors: list[FieldError] = [
        {"field": path.split(".", 2)[2], "message": f"declared by {manager}"}
        for manager, paths in held.items()
        for path in paths
    ]
    parts = {path.split(".")[1] for paths in held.values() for path in paths}
    commands = " and ".join(f"`paceline {command} --force`" for part, command in COMMANDS.items() if part in parts)
    told = "; ".join(f"{manager} declares {', '.join(paths)}" for manager, paths in held.items())
    detail = (
        f"{told} of {before.key}: change it there, or take it over with ?force=true ({commands}) "
        "until that tool applies it the next time; remove the field from what the tool applies to leave it to this "
        "API. Nothing was changed"
    )
    raise ProblemError(HTTPStatus.CONFLICT, "field-owned", detail, errors=errors, extra={"managers": list(held)})


def superseded(key: ProfileKey, part: Part, by: str) -> ProblemError:
    """Return the problem of a change that another tool overwrote before the engines ran it."""
    detail = f"{by} changed the {part} of {key} again before every engine ran this change: superseded by {by}"
    return ProblemError(HTTPStatus.CONFLICT, "superseded", detail, extra={"supersededBy": by})


def _part(before: ClusterProfile, name: Part, wanted: LiveModel | None) -> dict[str, Any]:
    if wanted is not None:
        return wanted.model_dump(mode="json", by_alias=True, exclude_none=True)
    ours = owned_paths(before.manifest)
    kept: dict[str, Any] = {}
    for path, value in leaves(before.manifest["spec"].get(name, {}), ("spec", name)):
        if path in ours:
            inner = kept
            for step in path[2:-1]:
                inner = inner.setdefault(step, {})
            inner[path[-1]] = value
    return kept

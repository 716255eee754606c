"""What a change of a profile does to its engines: hot, cold or nothing, with the reason. Pure.

Hot settings are swapped between two engine steps. Cold ones need new engines. Replicas and the manner of rolling out
touch no running engine.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.status import ChangeKind
from paceline.operator.api.v1alpha1 import InferenceProfileSpec, ModelSpec

Leaves = Mapping[str, str]
"""A spec as text by path, such as `engine.maxNumSeqs` -> `16`; values that are long or may be secret as a digest."""

_HOT: Final = ("pacing", "coalescing")
_WITHOUT_EFFECT: Final = (
    "engine.replicas",
    "rollout.strategy",
    "rollout.maxSurge",
    "rollout.maxUnavailable",
)
_BY_NAME: Final = ("engine.env", "engine.imagePullSecrets")
_LONGEST_SHOWN: Final = 64


@dataclass(frozen=True)
class Plan:
    """What a change does, and the fields that it changes, each as `path: old -> new`."""

    kind: ChangeKind
    fields: tuple[str, ...]

    @property
    def message(self) -> str:
        """The plan as a sentence."""
        changed = "; ".join(self.fields)
        if self.kind is ChangeKind.COLD:
            return f"cold change, new engines are started and running streams are drained: {changed}"
        if self.kind is ChangeKind.HOT:
            return f"hot change, applied between two engine steps: {changed}"
        return f"no engine is touched: {changed}" if changed else "nothing changed for the engines"


def cold_leaves(spec: InferenceProfileSpec) -> dict[str, str]:
    """Return the part of a spec that engines are made from."""
    return {path: text for path, text in _leaves(spec).items() if _kind_of(path) is ChangeKind.COLD}


def cold_changes(applied: Leaves, wanted: Leaves) -> tuple[str, ...]:
    """Return what differs between the cold settings that engines were made from and those that are wanted.

    A field that the applied ones don't know was added to the API after them: at its default it changes nothing, so
    that an upgrade never restarts an engine. A field that only they know and no API has any more changes nothing
    either.
    """
    defaults = _defaults()
    return tuple(
        f"{path}: {applied.get(path, 'unset')} -> {wanted.get(path, 'unset')}"
        for path in sorted({*applied, *wanted})
        if applied.get(path) != wanted.get(path)
        and not (path not in applied and wanted[path] == defaults.get(path))
        and not (path not in wanted and not _is_known(path))
    )


def hot_changes(running: LiveSettings, wanted: LiveSettings) -> tuple[str, ...]:
    """Return what differs between two live settings, whatever their fences."""
    old, new = (_flatten(_hot_part(settings)) for settings in (running, wanted))
    return tuple(
        f"{path}: {old.get(path, 'unset')} -> {new.get(path, 'unset')}"
        for path in sorted({*old, *new})
        if old.get(path) != new.get(path)
    )


def plan_change(old: InferenceProfileSpec, new: InferenceProfileSpec) -> Plan:
    """Plan the change from one spec of a profile to another."""
    return combine(
        cold=cold_changes(cold_leaves(old), cold_leaves(new)),
        hot=hot_changes(old.live_settings(), new.live_settings()),
        other=_other_changes(old, new),
    )


def combine(*, cold: tuple[str, ...], hot: tuple[str, ...], other: tuple[str, ...] = ()) -> Plan:
    """Return the plan for the fields that changed: cold before hot, since new engines start with the hot settings."""
    if cold:
        return Plan(ChangeKind.COLD, (*cold, *hot))
    if hot:
        return Plan(ChangeKind.HOT, hot)
    return Plan(ChangeKind.NONE, other)


def _other_changes(old: InferenceProfileSpec, new: InferenceProfileSpec) -> tuple[str, ...]:
    before, after = _leaves(old), _leaves(new)
    return tuple(
        f"{path}: {before.get(path, 'unset')} -> {after.get(path, 'unset')}"
        for path in sorted({*before, *after})
        if _kind_of(path) is ChangeKind.NONE and before.get(path) != after.get(path)
    )


def _hot_part(settings: LiveSettings) -> dict[str, Any]:
    return settings.model_dump(by_alias=True, exclude_none=True, mode="json", include={*_HOT})


def _leaves(spec: InferenceProfileSpec) -> dict[str, str]:
    return _flatten(spec.model_dump(by_alias=True, exclude_none=True, mode="json"))


@cache
def _defaults() -> dict[str, str]:
    return _leaves(InferenceProfileSpec(model=ModelSpec(source="hf://any/any")))


def _is_known(path: str) -> bool:
    """Tell whether the API of today has a field at `path`."""
    names, model = path.split("[", 1)[0].split("."), InferenceProfileSpec.model_json_schema(by_alias=True)
    definitions, node = model["$defs"], model
    for name in names:
        if name not in node.get("properties", {}):
            return "additionalProperties" in node and node["additionalProperties"] is not False
        node = node["properties"][name]
        node = next((option for option in node.get("anyOf", ()) if "$ref" in option), node)
        node = definitions[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
    return True


def _kind_of(path: str) -> ChangeKind:
    if path.split(".", 1)[0] in _HOT:
        return ChangeKind.HOT
    return ChangeKind.NONE if path in _WITHOUT_EFFECT else ChangeKind.COLD


def _flatten(value: Mapping[str, Any]) -> dict[str, str]:
    return dict(_walk(value, ""))


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _walk(child, f"{path}.{name}" if path else name)
    elif path in _BY_NAME:
        # A variable or an argument may carry a secret: a digest tells that it changed and nothing else.
        for item in value:
            yield f"{path}[{item['name']}]", _digest(item.get("value", ""))
    elif isinstance(value, list):
        if value:
            yield path, _digest(repr(value))
    else:
        text = str(value)
        yield path, text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 16]}... ({_digest(text)})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]

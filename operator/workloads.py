"""Brings a profile's workload about: the template only on a cold change, the rest whenever it differs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from paceline.operator.api.v1alpha1 import GROUP
from paceline.operator.cache import Cache, Key, Manifest, Record
from paceline.operator.drift import differences
from paceline.operator.plan import cold_changes, cold_leaves
from paceline.operator.specs.subject import Subject
from paceline.operator.specs.workload import (
    COLD_SPEC_ANNOTATION,
    REPLICAS_ANNOTATION,
    TEMPLATE_ANNOTATION,
    template_hash_of,
    workload_frame,
)
from paceline.operator.writer import MANAGER, TEMPLATE_MANAGER, Writer, owner_uid

UPDATE_ANNOTATION: Final = f"{GROUP}/update-template"
"""Set on a profile to the hash of a newer template, it asks for that template now."""

_OURS: Final = frozenset({MANAGER, TEMPLATE_MANAGER})


@dataclass(frozen=True)
class TemplateState:
    """What is known of the template that engines were made from, and what would be built today."""

    built: Manifest
    applied_hash: str | None
    cold: tuple[str, ...] | None
    drifted: bool
    requested: bool

    @property
    def must_apply(self) -> bool:
        """Tell whether the template has to be applied, which restarts the engines."""
        return self.cold is None or bool(self.cold) or self.drifted or self.requested

    @property
    def hash(self) -> str:
        """Hash of the template that new pods get after this pass."""
        return template_hash_of(self.built) if self.must_apply or self.applied_hash is None else self.applied_hash


def template_state(
    built: Manifest, subject: Subject, record: Record | None, annotations: Mapping[str, str]
) -> TemplateState:
    """Compare the template that would be built with the one applied; `annotations` are the profile's."""
    live = None if record is None else record.manifest()
    if live is None or owner_uid(live) != subject.uid:
        return TemplateState(built, None, None, drifted=False, requested=False)
    noted = live["metadata"].get("annotations", {})
    applied, today = noted.get(TEMPLATE_ANNOTATION), template_hash_of(built)
    ledger = _read_leaves(noted.get(COLD_SPEC_ANNOTATION))
    cold = (
        ("the workload's record of its settings was lost: unset -> built anew",)
        if ledger is None
        else cold_changes(ledger, cold_leaves(subject.spec))
    )
    return TemplateState(
        built,
        applied,
        cold,
        # Of a template that another version built, this one can't tell what it held.
        drifted=applied == today and any(differences(built["spec"], live["spec"])),
        requested=applied != today and annotations.get(UPDATE_ANNOTATION) == today,
    )


def update_message(state: TemplateState, name: str, record: Record | None) -> str:
    """Return what to do where this operator would build newer engine pods, else nothing."""
    today = template_hash_of(state.built)
    if record is None or state.hash == today:
        return ""
    changed = ", ".join(list(differences(state.built["spec"], record.manifest()["spec"]))[:5])
    return (
        f"this operator builds a newer pod template ({changed or 'fewer fields'}); it is taken with the next cold "
        f"change, or now (the engines restart): kubectl annotate ifp {name} --overwrite {UPDATE_ANNOTATION}={today}"
    )


async def apply_workload(writer: Writer, cache: Cache, key: Key, subject: Subject, state: TemplateState) -> None:
    """Apply what differs: first the template, then the frame around it."""
    record = cache.object(key, state.built["kind"], subject.base)
    replicas = _replicas(subject, record)
    frame = workload_frame(subject, replicas=replicas)
    frame["metadata"]["annotations"] = {REPLICAS_ANNOTATION: str(subject.spec.engine.replicas)}
    if state.must_apply:
        template = _noted(state.built, subject)
        if state.applied_hash is None:
            # Born with its replicas and strategy: Kubernetes' defaults would start an engine where none is wanted.
            template["spec"] = {**frame["spec"], **template["spec"]}
        await writer.apply(key, template, manager=TEMPLATE_MANAGER, fingerprint=False)
    strategy = frame["spec"].get("strategy", {})
    if record is not None and strategy.get("type") == "Recreate" and "rollingUpdate" in _strategy(record):
        # Recreate forbids numbers that the API server filled in for someone else, and applying can't remove those.
        await writer.merge(key, frame, {"spec": {"strategy": {**strategy, "rollingUpdate": None}}})
    await writer.apply(key, frame)


def _strategy(record: Record) -> Mapping[str, Any]:
    strategy: Mapping[str, Any] = record.manifest()["spec"].get("strategy", {})
    return strategy


def _noted(built: Manifest, subject: Subject) -> Manifest:
    annotations = {
        TEMPLATE_ANNOTATION: template_hash_of(built),
        COLD_SPEC_ANNOTATION: json.dumps(cold_leaves(subject.spec), sort_keys=True),
    }
    return {**built, "metadata": {**built["metadata"], "annotations": annotations}}


def _replicas(subject: Subject, record: Record | None) -> int | None:
    """Return the replicas to apply, or None where someone scaled the workload itself since the profile last did."""
    wanted = subject.spec.engine.replicas
    if record is None:
        return wanted
    live = record.manifest()
    told = live["metadata"].get("annotations", {}).get(REPLICAS_ANNOTATION)
    scaled_by_other = bool(record.scalers - _OURS) and live["spec"].get("replicas") != wanted
    return None if scaled_by_other and told == str(wanted) else wanted


def _read_leaves(text: str | None) -> dict[str, str] | None:
    try:
        parsed: Any = json.loads(text or "")
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None

"""One pass over a profile: read, build, apply what differs, tell the engines, observe, write the status once."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from paceline.engine_ext.settings import LiveSettings
from paceline.operator.api.v1alpha1 import RolloutStrategy
from paceline.operator.cache import Cache, Key
from paceline.operator.capabilities import Capabilities
from paceline.operator.conditions import Facts
from paceline.operator.config import EngineConfig
from paceline.operator.fleet import Fleet
from paceline.operator.kube.resources import DEPLOYMENTS, WORKER_SETS
from paceline.operator.profiles import ProfileView
from paceline.operator.reporter import Reporter
from paceline.operator.settings_ledger import SettingsLedger
from paceline.operator.specs.admin_token import admin_token, admin_token_secret
from paceline.operator.specs.desired import Desired, desired_objects
from paceline.operator.specs.names import selector_labels, selector_text
from paceline.operator.specs.problems import cluster_problems
from paceline.operator.specs.settings_map import Ledger
from paceline.operator.specs.subject import Subject
from paceline.operator.specs.workload import TEMPLATE_ANNOTATION
from paceline.operator.status import Observation, profile_status
from paceline.operator.troubles import Trouble
from paceline.operator.workloads import apply_workload, template_state, update_message
from paceline.operator.writer import NameTakenError, Writer, owner_uid

_LEAVING_SECONDS: Final = 2.0
"""Seconds until a profile is looked at again whose names are still being freed."""


def _utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Outcome:
    """How far a pass came. `again_seconds` asks for another pass."""

    ledger: Ledger | None = None
    template: str = ""
    template_update: str = ""
    refused: Trouble | None = None
    again_seconds: float | None = None


@dataclass
class Reconciler:
    """Passes over profiles, under one leadership."""

    cache: Cache
    writer: Writer
    ledger: SettingsLedger
    fleet: Fleet
    reporter: Reporter
    capabilities: Capabilities
    config: EngineConfig
    operator_key: bytes
    refused_seconds: float = 60
    now: Callable[[], str] = _utc_now

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return after how many seconds another is due, or None.

        Raises KubeError where the API server failed, and LostLeadershipError where a successor leads.
        """
        manifest = self.cache.profile(key)
        if manifest is None or (profile := ProfileView.read(manifest)).is_leaving:
            # Its objects go by their owner references, and engines drain by their pods' grace period.
            self._forget(key)
            return None
        outcome = await self._converge(key, profile)
        pods = self.cache.pods(key)
        if outcome.ledger is not None and outcome.refused is None:
            token = admin_token(self.operator_key, profile.uid)
            due = await self.fleet.deliver(key, pods, outcome.ledger.settings, token)
            if self.fleet.rival_of(key, outcome.ledger.settings) is not None:
                # The next pass puts the ledger above it.
                return 0.0
            outcome = replace(outcome, again_seconds=_sooner(outcome.again_seconds, due))
        await self._report(key, profile, outcome)
        return outcome.again_seconds

    async def _converge(self, key: Key, profile: ProfileView) -> Outcome:
        subject = profile.subject(self.config)
        if subject is None:
            return self._as_it_was(key, profile, profile.trouble)
        has_sets = await self.capabilities.has_worker_sets(needed=subject.spec.engine.parallelism.nodes > 1)
        problems = cluster_problems(subject, has_worker_sets=has_sets)
        if problems:
            outcome = self._as_it_was(key, profile, Trouble("ProfileRefused", "; ".join(problems)))
            return replace(outcome, again_seconds=self.refused_seconds)
        try:
            return await self._apply(key, profile, subject)
        except NameTakenError as error:
            outcome = self._as_it_was(key, profile, Trouble("NameTaken", str(error)))
            return replace(outcome, again_seconds=_LEAVING_SECONDS if error.leaving else self.refused_seconds)

    async def _apply(self, key: Key, profile: ProfileView, subject: Subject) -> Outcome:
        desired = desired_objects(subject)
        record = self.cache.object(key, desired.template["kind"], subject.base)
        state = template_state(desired.template, subject, record, profile.annotations)
        rival_of = partial(self.fleet.rival_of, key)
        ledger = await self.ledger.settle(key, subject, profile.generation, profile.previous, state.cold, rival_of)
        await self.reporter.announce(profile, ledger.change)
        if self.fleet.token_due(key, profile.uid, self.cache.pods(key)):
            await self.writer.create_once(key, admin_token_secret(subject, self.operator_key))
            self.fleet.token_made(key, profile.uid)
        again = None
        for manifest in desired.companions:
            if await self.capabilities.has(manifest):
                await self.writer.apply(key, manifest)
            else:
                again = self.refused_seconds
        await self._prune(key, profile, subject, desired)
        await apply_workload(self.writer, self.cache, key, subject, state)
        return Outcome(ledger, state.hash, update_message(state, profile.name, record), again_seconds=again)

    async def _prune(self, key: Key, profile: ProfileView, subject: Subject, desired: Desired) -> None:
        wanted = {
            (manifest["kind"], manifest["metadata"]["name"]) for manifest in (*desired.companions, desired.template)
        }
        wanted.add(("ConfigMap", subject.settings_name))
        for place, record in self.cache.objects(key).items():
            if place not in wanted and owner_uid(record.manifest()) == profile.uid:
                structlog.get_logger().info("object_removed", kind=place[0], object=place[1])
                await self.writer.delete(key, place, record)

    def _as_it_was(self, key: Key, profile: ProfileView, refused: Trouble | None) -> Outcome:
        """Return the outcome of a pass that changed nothing: what runs stays."""
        template = ""
        for kind in (DEPLOYMENTS.kind, WORKER_SETS.kind):
            if record := self.cache.object(key, kind, profile.base):
                template = record.manifest()["metadata"].get("annotations", {}).get(TEMPLATE_ANNOTATION, "")
        ledger = self.ledger.read(key, f"{profile.base}-settings", profile.uid)
        return Outcome(ledger, template, "", refused)

    async def _report(self, key: Key, profile: ProfileView, outcome: Outcome) -> None:
        spec, previous = profile.spec, profile.previous
        settings = outcome.ledger.settings if outcome.ledger else None
        settings = settings or LiveSettings(epoch=previous.epoch, revision=previous.revision)
        facts = Facts(
            replicas=profile.replicas,
            settings=settings,
            template=outcome.template,
            pods=[pod for pod in self.cache.pods(key) if pod.counts],
            reports=self.fleet.reports(key),
            workload_failure=self.reporter.workload_failure(key, profile.base),
            refused=outcome.refused,
            rolling_update=spec is not None and spec.rollout.strategy is RolloutStrategy.ROLLING_UPDATE,
        )
        status = profile_status(
            Observation(
                generation=profile.generation,
                previous=previous,
                now=self.now(),
                facts=facts,
                selector=selector_text(selector_labels(profile.name)),
                endpoint=f"http://{profile.base}.{profile.namespace}.svc",
                pacing=settings.pacing if spec is None else spec.pacing,
                change=outcome.ledger.change if outcome.ledger else None,
                template_update=outcome.template_update,
            )
        )
        await self.reporter.write(key, profile, status)
        await self.fleet.refresh_volumes(key)

    def _forget(self, key: Key) -> None:
        self.ledger.forget(key)
        self.fleet.forget(key)
        self.reporter.forget(key)


def _sooner(first: float | None, second: float | None) -> float | None:
    return second if first is None else first if second is None else min(first, second)

"""The engines of all profiles: which settings they were told, what they run, when to ask again."""

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from paceline.engine_ext.settings import LiveSettings, Verdict, judge
from paceline.operator.api.v1alpha1 import GROUP
from paceline.operator.cache import Key
from paceline.operator.engines import EngineClient, EngineReport
from paceline.operator.kube.client import KubeClient
from paceline.operator.kube.errors import KubeError
from paceline.operator.kube.resources import PODS
from paceline.operator.ledger import Fence
from paceline.operator.metrics import ENGINE_PUSHES
from paceline.operator.pods import PodView
from paceline.operator.writer import MANAGER

REVISION_ANNOTATION: Final = f"{GROUP}/revision"
_SHORTEST_RETRY_SECONDS: Final = 0.1
_LONGEST_RETRY_SECONDS: Final = 5.0
_TOKEN_RETRY_SECONDS: Final = 30.0

Run = tuple[str, int, str]


@dataclass
class _Known:
    """What is known of a profile's engines: reports by the run of the process that gave them."""

    reports: dict[str, tuple[Run, EngineReport, float]] = field(default_factory=dict)
    attempts: int = 0
    sent: LiveSettings | None = None
    token_uid: str = ""
    token_at: float = 0.0
    stale_volumes: dict[str, int] = field(default_factory=dict)


class Fleet:
    """Delivers live settings until every running engine runs them, and verifies it from time to time."""

    def __init__(
        self,
        engines: EngineClient,
        client: KubeClient,
        *,
        verify_seconds: float = 300,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = engines
        self._client = client
        self._verify_seconds = verify_seconds
        self._clock = clock
        self._known: dict[Key, _Known] = {}

    def forget(self, key: Key) -> None:
        """Drop what is known of a profile that is gone."""
        self._known.pop(key, None)

    def reports(self, key: Key) -> Mapping[str, EngineReport]:
        """Return each pod's last report, by its name."""
        known = self._known.get(key)
        return {} if known is None else {name: report for name, (_, report, _) in known.reports.items()}

    def rival_of(self, key: Key, settings: LiveSettings) -> Fence | None:
        """Return the newest fence of an engine that would refuse `settings`, or None.

        It runs newer ones, or others under the same fence: the ledger was restored from an older copy.
        """
        running = [report.settings for report in self.reports(key).values() if report.settings is not None]
        refusing = [r.fence for r in running if judge(r, settings) in (Verdict.STALE, Verdict.CONFLICT)]
        return max(refusing, default=None)

    async def deliver(self, key: Key, pods: Iterable[PodView], settings: LiveSettings, token: str) -> float | None:
        """Send settings to the engines that don't run them; return after how many seconds to look again."""
        known = self._known.setdefault(key, _Known())
        running = {pod.name: pod for pod in pods if pod.counts and pod.serves and pod.container.started and pod.ip}
        # A report speaks for one run of one process: a restarted engine has to answer anew.
        known.reports = {
            name: entry for name, entry in known.reports.items() if name in running and entry[0] == running[name].run
        }
        due = [pod for pod in running.values() if self._is_due(known, pod, settings)]
        if settings != known.sent:
            known.sent, known.attempts = settings, 0
        if due:
            before = {name: report.fence for name, (_, report, _) in known.reports.items()}
            for name, report in (await self._engines.send(due, settings, token)).items():
                known.reports[name] = (running[name].run, report, self._clock())
                self._note(known, name, report, settings, before)
        if not running:
            known.attempts = 0
            return None
        if all(report.runs(settings) for _, report, _ in known.reports.values()):
            known.attempts = 0
            return self._verify_seconds * random.uniform(0.8, 1.0)
        known.attempts += 1
        return min(_LONGEST_RETRY_SECONDS, _SHORTEST_RETRY_SECONDS * 2.0**known.attempts)

    async def refresh_volumes(self, key: Key) -> None:
        """Make kubelet bring the settings file of running pods up to date, by a change of their annotations.

        Without it kubelet does so within a minute, and an engine that restarts in between reads older settings.
        """
        known = self._known.get(key)
        while known is not None and known.stale_volumes:
            name, revision = known.stale_volumes.popitem()
            try:
                body = {"metadata": {"annotations": {REVISION_ANNOTATION: str(revision)}}}
                await self._client.merge(PODS, key.namespace, name, body, manager=MANAGER)
            except KubeError as error:
                structlog.get_logger().info("volume_not_refreshed", pod=name, error=str(error))

    def token_due(self, key: Key, uid: str, pods: Iterable[PodView]) -> bool:
        """Tell whether the token's Secret has to be made: once for a profile, and again while pods hang in creation.

        Of its presence nothing is known, since Secrets are not read; but a pod that started has mounted it.
        """
        known, present = self._known.setdefault(key, _Known()), list(pods)
        if known.token_uid != uid:
            return not any(pod.container.started for pod in present)
        hanging = any(pod.node and not pod.container.started and pod.container.exit_code is None for pod in present)
        return hanging and self._clock() - known.token_at > _TOKEN_RETRY_SECONDS

    def token_made(self, key: Key, uid: str) -> None:
        """Note that the token's Secret exists."""
        known = self._known.setdefault(key, _Known())
        known.token_uid, known.token_at = uid, self._clock()

    def _is_due(self, known: _Known, pod: PodView, settings: LiveSettings) -> bool:
        entry = known.reports.get(pod.name)
        if entry is None or not entry[1].runs(settings):
            return True
        return self._clock() - entry[2] > self._verify_seconds * 0.75

    def _note(
        self, known: _Known, name: str, report: EngineReport, settings: LiveSettings, before: Mapping[str, Fence]
    ) -> None:
        applied = report.runs(settings)
        ENGINE_PUSHES.labels(result="applied" if applied else "pending").inc()
        if applied and name in before and before[name][1] < settings.revision:
            known.stale_volumes[name] = settings.revision

"""Tells watchers of experiments, whichever replica runs them, without holding the database for them.

However many watch an experiment, one task reads its row: when the runner in this process says that something happened,
and otherwise about once a second. Between two reads no session is open.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from paceline.control_api.db.engine import Database
from paceline.control_api.models import experiments
from paceline.control_api.schemas.experiments import ExperimentSummary
from paceline.control_api.services.views import summary

POLL_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


@dataclass
class _Watch:
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    latest: ExperimentSummary | None = None
    gone: bool = False
    watchers: int = 0
    task: asyncio.Task[None] | None = None

    async def next(self, seen_version: int | None) -> ExperimentSummary | None:
        """Wait for what differs from the version that was seen; None when the experiment is gone."""
        async with self.news:
            await self.news.wait_for(lambda: self.gone or _is_news(self.latest, seen_version))
            return None if self.gone else self.latest


class ProgressHub:
    """Fans the changes of experiments out to those who watch them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watches: dict[str, _Watch] = {}

    def notify(self, experiment_id: str) -> None:
        """Have watchers of an experiment told at once that it changed."""
        if watch := self._watches.get(experiment_id):
            watch.hurry.set()

    async def watch(self, experiment_id: str, seen_version: int | None = None) -> AsyncIterator[ExperimentSummary]:
        """Yield the experiment now, unless `seen_version` is the present one, and after each change until its end."""
        watch = self._watches.setdefault(experiment_id, _Watch())
        watch.watchers += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._follow(experiment_id, watch), name=f"follow-{experiment_id}")
        try:
            latest = await watch.next(seen_version)
            while latest is not None:
                yield latest
                latest = None if latest.status.ended else await watch.next(latest.version)
        finally:
            watch.watchers -= 1
            if watch.watchers == 0:
                self._watches.pop(experiment_id, None)
                # Not cancelled: that would break its database connection off in the middle of a read.
                watch.hurry.set()

    async def close(self) -> None:
        """End all streams."""
        watches = list(self._watches.values())
        for watch in watches:
            async with watch.news:
                watch.gone = True
                watch.news.notify_all()
            watch.hurry.set()
        await asyncio.gather(*(watch.task for watch in watches if watch.task is not None))

    async def _follow(self, experiment_id: str, watch: _Watch) -> None:
        structlog.contextvars.clear_contextvars()
        while watch.watchers and not watch.gone and (watch.latest is None or not watch.latest.status.ended):
            watch.hurry.clear()
            try:
                async with self._database.read() as session:
                    row = await experiments.get(session, experiment_id)
            except (DBAPIError, PoolTimeoutError, OSError) as error:
                _log.warning("progress_unreadable", experiment=experiment_id, reason=str(error))
            else:
                async with watch.news:
                    watch.gone |= row is None
                    watch.latest = summary(row) if row is not None else None
                    watch.news.notify_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watch.hurry.wait(), POLL_SECONDS)


def _is_news(latest: ExperimentSummary | None, seen_version: int | None) -> bool:
    # The last change may have been seen before a reconnect: the end is always told again.
    return latest is not None and (latest.version != seen_version or latest.status.ended)

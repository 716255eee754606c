"""One run of an experiment: the arms' settings go to the store, the records to the database as they come."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.bench.engine import EngineAddress
from paceline.bench.measuring_process import run_in_process
from paceline.bench.plan import Arm, ExperimentPlan
from paceline.bench.protocol import ProgressEvent
from paceline.bench.records import BlockRecord, ExperimentResult, RequestRecord
from paceline.bench.runner import EngineLimits
from paceline.control_api.context import AppContext
from paceline.control_api.db.tables import ExperimentRow
from paceline.control_api.models import records, runs
from paceline.control_api.profiles.base import Change, ProfileKey
from paceline.control_api.services.progress import ProgressHub
from paceline.operator.api.v1alpha1 import InferenceProfile

APPLY_SECONDS: Final = 30.0
"""How long an engine may take to run an arm's settings, beside a long step."""

DATABASE_RETRY_SECONDS: Final = 60.0
FIRST_RETRY_SECONDS: Final = 0.2
LAST_RETRY_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


class SettingsNotAppliedError(Exception):
    """An engine did not run an arm's settings in time."""


class Run:
    """The settings applier and the record sink of one experiment."""

    def __init__(self, context: AppContext, hub: ProgressHub, row: ExperimentRow) -> None:
        self._context = context
        self._hub = hub
        self.id = row.id
        self.key = ProfileKey(row.profile_namespace, row.profile_name)
        self.plan = ExperimentPlan.model_validate(row.plan)
        self._profile = InferenceProfile.model_validate(row.profile)

    async def execute(self) -> ExperimentResult:
        """Run the plan and return what follows from it; whatever goes wrong is raised."""
        access = await self._context.store.engine_access(self.key)
        before = (await self._context.store.get(self.key)).state.settings
        document = before.model_dump(mode="json", by_alias=True)
        await self._persist(lambda session: runs.set_before(session, self.id, document))
        engine = self._profile.spec.engine
        address = EngineAddress(access.engine_url, None, access.admin_url, access.admin_token)
        limits = EngineLimits(engine.max_num_batched_tokens, engine.max_num_seqs)
        return await run_in_process(self.plan, address, self.apply, self, limits)

    async def apply(self, arm: Arm) -> int:
        """Put an arm's settings live and return their revision. Raises SettingsNotAppliedError."""
        # Who asked for the experiment was told of other tools that declare these fields.
        author = f"experiment {self.id}"
        change = Change(pacing=arm.pacing, coalescing=arm.coalescing, force=True, author=author)
        state = await self._context.store.change(self.key, change, APPLY_SECONDS)
        if not state.applied:
            message = f"the settings of arm {arm.name} were not applied within {APPLY_SECONDS:g} s: {state.lagging()}"
            raise SettingsNotAppliedError(message)
        return state.settings.revision

    async def event(self, event: ProgressEvent) -> None:
        """Keep and spread the latest moment of the run."""
        document = event.model_dump(mode="json", by_alias=True)
        await self._persist(lambda session: runs.set_progress(session, self.id, document))
        self._hub.notify(self.id)

    async def request(self, record: RequestRecord) -> None:
        """Store a request that ended."""
        await self._persist(lambda session: records.add_request(session, self.id, record))

    async def block(self, record: BlockRecord) -> None:
        """Store a block that ended."""
        await self._persist(lambda session: records.add_block(session, self.id, record))

    async def _persist(self, write: Callable[[AsyncSession], Awaitable[None]]) -> None:
        await persist(self._context, write)


async def persist(context: AppContext, write: Callable[[AsyncSession], Awaitable[None]]) -> None:
    """Write, and wait for a database that is away: a measurement is too dear to be lost to its restart.

    Raises the database's error when it stays away for DATABASE_RETRY_SECONDS.
    """
    deadline = asyncio.get_running_loop().time() + DATABASE_RETRY_SECONDS
    delay = FIRST_RETRY_SECONDS
    while True:
        try:
            await _write_whole(context, write)
        except (OperationalError, InterfaceError, PoolTimeoutError, OSError) as error:
            if asyncio.get_running_loop().time() + delay > deadline:
                raise
            _log.warning("database_away", reason=str(error), retry_seconds=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY_SECONDS)
        else:
            return


async def _write_whole(context: AppContext, write: Callable[[AsyncSession], Awaitable[None]]) -> None:
    """Write in one transaction; a cancellation waits for its end, or it would break the connection off."""

    async def transaction() -> None:
        async with context.database.write() as session:
            await write(session)

    writing = asyncio.create_task(transaction())
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.exception()
        raise

"""What a run measured: requests and blocks as they end, and what was concluded at its end."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.bench.records import (
    ArmResult,
    AuditResult,
    BlockRecord,
    ClockOrigin,
    Comparison,
    EngineFingerprint,
    Estimate,
    ExperimentResult,
    RequestRecord,
)
from paceline.control_api.db.tables import ArmRow, AuditRow, BlockRow, Document, ExperimentRow, RequestRow, ResultRow
from paceline.control_api.models.experiments import insert_once


def document(record: RequestRecord | BlockRecord | ArmResult | EngineFingerprint | ClockOrigin) -> Document:
    """Return a record as it is stored and sent."""
    return record.model_dump(mode="json", by_alias=True)


async def add_request(session: AsyncSession, experiment_id: str, record: RequestRecord) -> None:
    """Store a request; storing it again changes nothing, so a caller that got no answer may repeat it."""
    values = {
        "experiment_id": experiment_id,
        "arm_id": await _arm_id(session, experiment_id, record.arm),
        "block": record.block,
        "warm_up": record.warm_up,
        "request_id": record.request_id,
        "role": record.role,
        "state": record.state,
        "record": document(record),
    }
    await insert_once(session, RequestRow, values)


async def add_block(session: AsyncSession, experiment_id: str, record: BlockRecord) -> None:
    """Store a block; storing it again changes nothing."""
    values = {
        "experiment_id": experiment_id,
        "arm_id": await _arm_id(session, experiment_id, record.arm),
        "position": record.position,
        "block": record.block,
        "warm_up": record.warm_up,
        "revision": record.revision,
        "record": document(record),
    }
    await insert_once(session, BlockRow, values)


async def add_result(session: AsyncSession, experiment_id: str, result: ExperimentResult) -> None:
    """Store what was concluded from a run; its fingerprint and clock belong to the experiment's own row."""
    for arm in result.arms:
        where = (ArmRow.experiment_id == experiment_id, ArmRow.name == arm.arm)
        await session.execute(update(ArmRow).where(*where).values(result=document(arm)))
    session.add_all(_result_row(experiment_id, comparison) for comparison in result.comparisons)
    session.add_all(
        AuditRow(
            experiment_id=experiment_id, name=audit.name, arm=audit.arm, outcome=audit.outcome, message=audit.message
        )
        for audit in result.audits
    )
    await session.flush()


async def blocks_of(session: AsyncSession, experiment_id: str) -> list[BlockRecord]:
    """Return the blocks in the order in which they ran."""
    query = select(BlockRow.record).where(BlockRow.experiment_id == experiment_id).order_by(BlockRow.position)
    return [BlockRecord.model_validate(record) for record in (await session.execute(query)).scalars()]


async def requests_page(session: AsyncSession, experiment_id: str, after: int, limit: int) -> Sequence[RequestRow]:
    """Return at most `limit` requests that were stored after the one with the id `after`."""
    query = (
        select(RequestRow)
        .where(RequestRow.experiment_id == experiment_id, RequestRow.id > after)
        .order_by(RequestRow.id)
        .limit(limit)
    )
    return (await session.execute(query)).scalars().all()


async def requests_with_role(session: AsyncSession, experiment_id: str, role: str) -> list[RequestRecord]:
    """Return all requests of one role."""
    query = (
        select(RequestRow.record)
        .where(RequestRow.experiment_id == experiment_id, RequestRow.role == role)
        .order_by(RequestRow.id)
    )
    return [RequestRecord.model_validate(record) for record in (await session.execute(query)).scalars()]


async def result_of(session: AsyncSession, row: ExperimentRow) -> ExperimentResult | None:
    """Put the result of an experiment (with its arms loaded) together again; None where there is none."""
    if row.engine is None or row.clock is None or any(arm.result is None for arm in row.arms):
        return None
    compared = select(ResultRow).where(ResultRow.experiment_id == row.id).order_by(ResultRow.id)
    audited = select(AuditRow).where(AuditRow.experiment_id == row.id).order_by(AuditRow.id)
    return ExperimentResult(
        engine=EngineFingerprint.model_validate(row.engine),
        clock=ClockOrigin.model_validate(row.clock),
        arms=tuple(ArmResult.model_validate(arm.result) for arm in row.arms),
        comparisons=tuple(_comparison(found) for found in (await session.execute(compared)).scalars()),
        audits=tuple(
            AuditResult.model_validate(
                {"name": found.name, "arm": found.arm, "outcome": found.outcome, "message": found.message}
            )
            for found in (await session.execute(audited)).scalars()
        ),
    )


async def _arm_id(session: AsyncSession, experiment_id: str, name: str) -> int:
    query = select(ArmRow.id).where(ArmRow.experiment_id == experiment_id, ArmRow.name == name)
    return (await session.execute(query)).scalar_one()


def _result_row(experiment_id: str, comparison: Comparison) -> ResultRow:
    ratio = comparison.ratio
    return ResultRow(
        experiment_id=experiment_id,
        arm=comparison.arm,
        baseline=comparison.baseline,
        metric=comparison.metric,
        ratio=ratio.value if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        blocks=ratio.blocks if ratio else None,
        verdict=comparison.verdict,
        reason=comparison.reason,
    )


def _comparison(row: ResultRow) -> Comparison:
    ratio = None
    if row.ratio is not None and row.ratio_low is not None and row.ratio_high is not None and row.blocks is not None:
        ratio = Estimate(value=row.ratio, low=row.ratio_low, high=row.ratio_high, blocks=row.blocks)
    return Comparison.model_validate(
        {
            "arm": row.arm,
            "baseline": row.baseline,
            "metric": row.metric,
            "ratio": ratio,
            "verdict": row.verdict,
            "reason": row.reason,
        }
    )

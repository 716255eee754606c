"""From rows to what the API shows."""

from paceline.bench.protocol import ProgressEvent
from paceline.control_api.db.tables import ExperimentRow
from paceline.control_api.schemas.experiments import ExperimentStatus, ExperimentSummary


def summary(row: ExperimentRow) -> ExperimentSummary:
    """Return what a list and a watcher see of an experiment."""
    return ExperimentSummary(
        id=row.id,
        name=row.name,
        profile=f"{row.profile_namespace}/{row.profile_name}",
        status=ExperimentStatus(row.status),
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        seed=row.seed,
        progress=ProgressEvent.model_validate(row.progress) if row.progress else None,
        failure=row.failure,
        cancel_requested=row.cancel_requested,
        version=row.version,
    )

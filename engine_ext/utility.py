"""What an engine core answers to the admin port: methods added to vLLM's EngineCore, called by name between steps.

Arguments and answers are plain JSON values, since they cross a process boundary.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from paceline.engine_ext.coalescing.scheduler import CoalescingMixin
from paceline.engine_ext.methods import APPLY_METHOD, STATE_METHOD, STEPS_METHOD
from paceline.engine_ext.pacing.mixin import PacingMixin
from paceline.engine_ext.page_gate.gate import GATE
from paceline.engine_ext.settings import LiveSettings


def state(core: Any) -> dict[str, Any]:
    """Return what the engine core runs, how far it has come, and its counters."""
    scheduler = core.scheduler
    if not isinstance(scheduler, PacingMixin):
        return _foreign(core)
    live = scheduler.live
    return {
        "engine": scheduler.engine_rank,
        "epoch": live.epoch,
        "revision": live.revision,
        "step": scheduler.step_log.last_busy,
        "paced": scheduler.paced,
        "reasons": list(scheduler.unpaced_reasons),
        "compatible": not scheduler.incompatible,
        "settings": live.model_dump(mode="json", by_alias=True, exclude_none=True),
        "unfinished": scheduler.get_num_unfinished_requests(),
        "counters": _counters(scheduler),
        "pacing": scheduler.pacing_report(),
        "coalescing": scheduler.coalescing_report() if isinstance(scheduler, CoalescingMixin) else {},
        "pageGate": GATE.report(core),
    }


def apply(core: Any, document: str) -> dict[str, Any]:
    """Take over the settings in a JSON document; the answer is the state afterwards, with the verdict."""
    scheduler = core.scheduler
    if not isinstance(scheduler, PacingMixin):
        return {**_foreign(core), "verdict": None}
    applied = scheduler.apply_settings(LiveSettings.model_validate_json(document))
    return {**state(core), "verdict": applied.verdict.value}


def steps(core: Any, after: int | None, limit: int) -> dict[str, Any]:
    """Return the counters, and records of steps: the newest, or those that follow step `after`."""
    scheduler = core.scheduler
    if not isinstance(scheduler, PacingMixin):
        return {"counters": {}, "records": []}
    log = scheduler.step_log
    rank = scheduler.engine_rank
    return {"counters": _counters(scheduler), "records": [record.to_wire(rank) for record in log.page(after, limit)]}


def _counters(scheduler: PacingMixin) -> dict[str, Any]:
    counters = scheduler.step_log.counters()
    if isinstance(scheduler, CoalescingMixin):
        counters["coalescing"] = scheduler.coalescing_counters.to_wire()
    counters["pageGate"] = GATE.counters.as_dict(scheduler.engine_rank)
    return counters


def _foreign(core: Any) -> dict[str, Any]:
    name = f"{type(core.scheduler).__module__}.{type(core.scheduler).__qualname__}"
    return {
        "engine": core.vllm_config.parallel_config.data_parallel_index,
        "epoch": 0,
        "revision": 0,
        "step": 0,
        "paced": False,
        "reasons": [f"the engine runs the scheduler {name}; start it with Paceline's --scheduler-cls"],
        "compatible": False,
        "settings": LiveSettings().model_dump(mode="json", by_alias=True, exclude_none=True),
        "unfinished": 0,
        "counters": {},
        "pacing": {},
        "coalescing": {},
        "pageGate": GATE.report(core),
    }


METHODS: Final[Mapping[str, Callable[..., Any]]] = {STATE_METHOD: state, APPLY_METHOD: apply, STEPS_METHOD: steps}


def install(engine_core: type) -> None:
    """Add the methods to vLLM's EngineCore class; doing so again changes nothing."""
    for name, method in METHODS.items():
        setattr(engine_core, name, method)

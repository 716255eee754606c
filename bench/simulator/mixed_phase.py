"""The mixed phase in virtual time: residents decode, then a cold prompt is prefilled beside them. Needs vLLM."""

from collections.abc import Callable
from typing import Final

import vllm

from paceline.bench.records import Metric
from paceline.bench.simulator.exchange import (
    SimulatedArm,
    SimulatedFigures,
    SimulationRequest,
    SimulationResult,
)
from paceline.bench.simulator.hardware import Hardware, SimulatedWorkload
from paceline.bench.simulator.loop import SimulatedRequest, Simulation, StalledError

STEADY_TOKENS: Final = 8
"""How many tokens each resident has before the window before the prefill is measured."""
BEFORE_STEPS: Final = 64
ENDLESS_TOKENS: Final = 500_000
INJECTED: Final = "injected"


def simulate(request: SimulationRequest) -> SimulationResult:
    """Simulate every arm. Raises StalledError where the work does not fit the hardware."""
    figures = tuple(mixed_phase(request.hardware, request.workload, arm) for arm in request.arms)
    return SimulationResult(engine_version=vllm.__version__, figures=figures)


def mixed_phase(hardware: Hardware, work: SimulatedWorkload, arm: SimulatedArm) -> SimulatedFigures:
    """Simulate one arm; the window during the prefill runs from the prompt's first chunk to its first token."""
    engine = Simulation(hardware, arm.pacing)
    residents = [
        engine.add(f"resident{index}", work.resident_context_tokens, ENDLESS_TOKENS) for index in range(work.residents)
    ]
    _run(engine, lambda: all(len(resident.token_seconds) >= STEADY_TOKENS for resident in residents))
    before, steps = engine.now, len(engine.steps)
    _run(engine, lambda: len(engine.steps) >= steps + BEFORE_STEPS)
    arrived, steps = engine.now, len(engine.steps)
    injected = engine.add(INJECTED, work.prompt_tokens, 1)
    _run(engine, lambda: injected.finished)
    first_token, during = injected.token_seconds[0], engine.steps[steps:]
    admitted = arrived if injected.admitted is None else injected.admitted
    metrics = {
        Metric.RESIDENT_RATE_BEFORE: _rate(residents, before, arrived),
        Metric.RESIDENT_RATE_DURING: _rate(residents, admitted, first_token),
        Metric.LONGEST_CHUNK_GAP_DURING: max(_gap(resident, admitted, first_token) for resident in residents),
        Metric.TIME_TO_FIRST_TOKEN: hardware.admission_seconds + first_token - arrived,
        Metric.ADMISSION_TO_FIRST_TOKEN: first_token - admitted,
    }
    mixed = sum(step.prefill_tokens > 0 for step in during)
    return SimulatedFigures(
        arm=arm.name,
        metrics=metrics,
        mixed_steps=mixed,
        decode_steps=len(during) - mixed,
        virtual_seconds=engine.now,
    )


def _run(engine: Simulation, done: Callable[[], bool]) -> None:
    engine.run_until(lambda: done() or engine.preemptions > 0)
    if engine.preemptions:
        raise StalledError(
            f"the KV cache is too small: a request was preempted after {engine.now:.1f} simulated seconds; raise "
            "kvCacheTokens, or lower the residents, their context or the prompt"
        )


def _rate(residents: list[SimulatedRequest], start: float, end: float) -> float:
    """Return the mean tokens per second of a resident in a window that is open at its start."""
    tokens = sum(start < second <= end for resident in residents for second in resident.token_seconds)
    return tokens / len(residents) / (end - start)


def _gap(resident: SimulatedRequest, start: float, end: float) -> float:
    within = [second for second in resident.token_seconds if start < second <= end]
    return max(after - before for before, after in zip([start, *within], [*within, end], strict=True))

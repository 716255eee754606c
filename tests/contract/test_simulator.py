"""The published tables from vLLM's real scheduler in virtual time; nothing here is a measurement."""

import pytest

from paceline.bench.records import Metric
from paceline.bench.simulator.exchange import SimulatedArm, SimulatedFigures
from paceline.bench.simulator.hardware import Hardware, SimulatedWorkload, StepTime, load_hardware
from paceline.bench.simulator.loop import Simulation, StalledError
from paceline.bench.simulator.mixed_phase import mixed_phase
from paceline.engine_ext.settings import PacingMode, PacingSettings, SloSettings

WITHIN = 0.10


def fixed(interval: int) -> PacingSettings:
    return PacingSettings(mode=PacingMode.FIXED, interval=interval)


def simulated(hardware: str, pacing: PacingSettings | None, prompt_tokens: int | None = None) -> SimulatedFigures:
    model = load_hardware(hardware)
    changes = {"prompt_tokens": prompt_tokens} if prompt_tokens else {}
    return mixed_phase(model, model.workload.model_copy(update=changes), SimulatedArm(name="arm", pacing=pacing))


def plain(**fields: object) -> Hardware:
    """0.1 s a step and 1 ms a prefill token: chunks of 99 tokens beside one resident."""
    given = {
        "name": "plain",
        "description": "",
        "source": "made up",
        "step_time": StepTime(base_milliseconds=100, per_prefill_token_microseconds=1_000),
        "max_num_batched_tokens": 100,
        "max_num_seqs": 16,
        "workload": SimulatedWorkload(prompt_tokens=990, resident_context_tokens=10),
    }
    return Hardware(**{**given, **fields})


@pytest.mark.parametrize(
    ("hardware", "prompt", "interval", "rate", "wait"),
    [
        ("v100x2", 16_384, 0, 4.2, 21.3),
        ("v100x2", 16_384, 4, 11.1, 31.9),
        ("v100x2", 16_384, 8, 14.6, 45.6),
        ("v100x2", 131_072, 0, None, 314.7),
        ("v100x2", 131_072, 4, 7.38, 400.1),
        ("v100x2-any-page", 131_072, 0, None, 207.9),
        ("v100x2-any-page", 131_072, 4, 9.86, 293.8),
        ("v100x4", None, 0, 12.736, 20.799),
        ("v100x4", None, 4, 29.983, 23.048),
    ],
)
def test_published_tables(hardware: str, prompt: int | None, interval: int, rate: float | None, wait: float) -> None:
    metrics = simulated(hardware, fixed(interval), prompt).metrics
    assert metrics[Metric.TIME_TO_FIRST_TOKEN] == pytest.approx(wait, rel=WITHIN)
    if rate is not None:
        assert metrics[Metric.RESIDENT_RATE_DURING] == pytest.approx(rate, rel=WITHIN)


def test_four_cards_wait_before_admission_and_after_it() -> None:
    unpaced, paced = (simulated("v100x4", fixed(interval)).metrics for interval in (0, 4))
    assert unpaced[Metric.RESIDENT_RATE_BEFORE] == pytest.approx(69.2, rel=0.01)
    assert unpaced[Metric.ADMISSION_TO_FIRST_TOKEN] == pytest.approx(6.083, rel=WITHIN)
    assert paced[Metric.ADMISSION_TO_FIRST_TOKEN] == pytest.approx(8.704, rel=WITHIN)
    for metrics in (unpaced, paced):
        before = metrics[Metric.TIME_TO_FIRST_TOKEN] - metrics[Metric.ADMISSION_TO_FIRST_TOKEN]
        assert before == pytest.approx(14.716)


def test_unpaced_is_exactly_vllms_own() -> None:
    ours, stock = (simulated("v100x4", pacing) for pacing in (PacingSettings(), None))
    assert ours == stock


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_virtual_time_is_the_sum_of_the_steps(asynchronous: bool) -> None:
    figures = mixed_phase(plain(asynchronous=asynchronous), plain().workload, SimulatedArm(name="a", pacing=fixed(4)))
    # 990 tokens in ten chunks of 99: ten mixed steps of 0.199 s, and three decode steps of 0.1 s before all but one.
    assert figures.mixed_steps == 10
    waited = 10 * 0.199 + 9 * 3 * 0.1
    assert figures.metrics[Metric.ADMISSION_TO_FIRST_TOKEN] == pytest.approx(waited, abs=0.2 * asynchronous + 1e-9)
    assert figures.metrics[Metric.RESIDENT_RATE_BEFORE] == pytest.approx(10)


def test_drafts_yield_the_stated_tokens_a_step() -> None:
    hardware = plain(draft_tokens=4, tokens_per_step=3.3)
    engine = Simulation(hardware, fixed(4))
    resident = engine.add("resident", 10, 1_000)
    engine.run_until(lambda: len(engine.steps) >= 202)
    # One token with the prompt, then 3.3 in each of 201 steps, of which whole tokens came.
    assert len(resident.token_seconds) == 1 + 663


def test_time_passes_while_nothing_is_to_do() -> None:
    engine = Simulation(plain(), PacingSettings())
    engine.idle_until(5.0)
    request = engine.add("late", 50, 1, arrived=4.5)
    engine.run_until(lambda: request.finished)
    assert request.token_seconds == pytest.approx([5.0 + 0.1 + 0.05])
    assert request.arrived == 4.5


def test_promise_is_simulated_too() -> None:
    slo = PacingSettings(mode=PacingMode.SLO, slo=SloSettings(time_per_output_token_milliseconds=150))
    engine = Simulation(plain(), slo)
    resident = engine.add("resident", 10, 100_000)
    engine.run_until(lambda: len(engine.steps) >= 10)
    lesson = engine.add("lesson", 990, 1)
    engine.run_until(lambda: lesson.finished)
    start, seen = engine.now, len(resident.token_seconds)
    injected = engine.add("injected", 9_900, 1)
    engine.run_until(lambda: injected.finished)
    spent = engine.now - start
    assert spent / (len(resident.token_seconds) - seen) <= 0.150 * 1.02
    # 100 chunks at 0.199 s, 0.049 s over the promise each, and 0.05 s saved by each decode step: about one for one.
    assert spent == pytest.approx(100 * 0.199 + 98 * 0.1, rel=0.03)


def test_work_that_does_not_fit_is_told() -> None:
    engine = Simulation(plain(kv_cache_tokens=1_024), PacingSettings())
    engine.add("huge", 5_000, 1)
    with pytest.raises(StalledError, match="KV cache too small"):
        engine.run_until(lambda: False)


def test_residents_that_outgrow_the_cache_end_the_simulation() -> None:
    # 64 blocks hold 1,024 tokens: two residents after 450, until each has decoded some 60.
    work = SimulatedWorkload(residents=2, resident_context_tokens=450, prompt_tokens=100)
    hardware = plain(kv_cache_tokens=1_024)
    hardware.must_hold(work)
    with pytest.raises(StalledError, match="a request was preempted after"):
        mixed_phase(hardware, work, SimulatedArm(name="a", pacing=fixed(4)))

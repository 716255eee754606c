"""The step-time model against engines whose times are known exactly."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine_ext.pacing.step_time import StepLoad, StepTimeModel, chunk_load, decode_load


def true_seconds(load: StepLoad) -> float:
    return 0.05 + 0.002 * load.decoders + 2e-4 * load.prefill_tokens + 3e-9 * load.prefill_pairs


def taught(noise: float = 0.0, outliers: int = 0, seed: int = 0) -> StepTimeModel:
    generator, model = random.Random(seed), StepTimeModel()
    for index in range(60):
        decoders = generator.randint(1, 16)
        chunk = generator.randint(200, 2_048)
        for load in (decode_load(decoders), chunk_load(decoders, chunk, index * 500)):
            factor = 1 + noise * generator.uniform(-1, 1)
            model.observe(load, true_seconds(load) * (20.0 if outliers and index % (60 // outliers) == 3 else factor))
    return model


LOADS = (
    decode_load(1),
    decode_load(12),
    chunk_load(2, 2_048, 0),
    chunk_load(2, 2_048, 16_384),
    chunk_load(9, 500, 8_000),
)


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_exact_times_are_learned(load: StepLoad) -> None:
    assert taught().predict(load) == pytest.approx(true_seconds(load), rel=0.01)


def test_costs_of_tokens_and_pairs_are_learned() -> None:
    assert taught().prefill_costs() == pytest.approx((2e-4, 3e-9), rel=0.01)


def test_steady_decode_steps_do_not_make_prefill_steps_stray() -> None:
    model = StepTimeModel()
    for _ in range(60):
        model.observe(decode_load(2), true_seconds(decode_load(2)))
    for index in range(8):  # each 5 % off, by turns
        load = chunk_load(2, 2_048, 2_048 * index)
        model.observe(load, true_seconds(load) * (1.05 if index % 2 else 0.95))
    far = chunk_load(2, 2_048, 65_536)
    assert model.predict(far) == pytest.approx(true_seconds(far), rel=0.15)


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_stray_steps_hardly_count(load: StepLoad) -> None:
    assert taught(noise=0.1, outliers=4).predict(load) == pytest.approx(true_seconds(load), rel=0.25)


def test_a_changed_engine_is_learned_anew() -> None:
    model = taught()
    for index in range(64):
        for load in (decode_load(1 + index % 8), chunk_load(2, 1_000 + index, 100 * index)):
            model.observe(load, 3 * true_seconds(load))
    assert model.predict(decode_load(4)) == pytest.approx(3 * true_seconds(decode_load(4)), rel=0.02)


def test_ready_wants_three_steps_of_either_kind() -> None:
    model = StepTimeModel()
    for index in range(3):
        assert not model.ready
        model.observe(decode_load(1), 0.05)
        model.observe(chunk_load(1, 2_048, 2_048 * index), 1.0)
    assert model.ready


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 4_096), st.floats(1e-4, 100)), min_size=6, max_size=60))
def test_prediction_is_never_negative_nor_broken(samples: list[tuple[int, int, float]]) -> None:
    model = StepTimeModel()
    for decoders, tokens, seconds in samples:
        model.observe(chunk_load(decoders, tokens, 100), seconds)
    for load in LOADS:
        assert 0.0 <= model.predict(load) < 1e9

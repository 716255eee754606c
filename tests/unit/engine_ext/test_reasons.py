"""Which engines can't be paced, and the reason that is told."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.engine_ext.pacing.reasons import own_cadence, unpaceable


def engine(runner: str = "generate", **changes: Any) -> SimpleNamespace:
    model = {"runner_type": runner, "is_encoder_decoder": False, "is_diffusion": False}
    model |= {key: value for key, value in changes.items() if key in model}
    return SimpleNamespace(
        model_config=SimpleNamespace(**model),
        kv_transfer_config=changes.get("kv_transfer_config"),
        ec_transfer_config=changes.get("ec_transfer_config"),
    )


def test_a_generating_engine_is_paced() -> None:
    assert unpaceable(engine()) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (engine("pooling"), "a pooling model has no decoding requests to protect"),
        (engine(is_encoder_decoder=True), "an encoder-decoder model's prefill can't be chunked"),
        (engine(is_diffusion=True), "a diffusion model decodes whole canvases, not single tokens"),
        (
            engine(kv_transfer_config=object()),
            "a KV connector is configured, and holding waiting requests would delay its loads",
        ),
        (
            engine(ec_transfer_config=object()),
            "an encoder-cache connector is configured, and holding requests would delay its loads",
        ),
    ],
)
def test_why_an_engine_is_not_paced(found: SimpleNamespace, reason: str) -> None:
    assert unpaceable(found) == [reason]


def test_every_reason_is_told() -> None:
    assert len(unpaceable(engine("pooling", is_encoder_decoder=True, kv_transfer_config=object()))) == 3


def test_an_older_engine_without_the_newer_fields_is_judged_by_those_it_has() -> None:
    older = SimpleNamespace(
        model_config=SimpleNamespace(runner_type="generate", is_encoder_decoder=False), kv_transfer_config=None
    )
    assert unpaceable(older) == []


@pytest.mark.parametrize(
    ("ranks", "interval", "local", "told"),
    [(1, 1, None, None), (1, 8, None, None), (2, 1, None, None), (2, 8, None, 8), (1, 8, 8, 8), (2, 8, 1, 8)],
)
def test_an_engine_that_holds_prefills_itself_is_not_paced(
    ranks: int, interval: int, local: int | None, told: int | None
) -> None:
    scheduler = SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
        scheduler_config=SimpleNamespace(prefill_schedule_interval=interval),
    )
    if local is not None:
        scheduler.local_prefill_interval = local
    expected = f"vLLM itself holds prefills for {told} steps: leave prefill_schedule_interval at 1 to have them paced"
    assert own_cadence(scheduler) == ([expected] if told else [])

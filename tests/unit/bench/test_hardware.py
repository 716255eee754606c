from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from paceline.bench.simulator.hardware import (
    Hardware,
    HardwareError,
    SimulatedWorkload,
    StepTime,
    known_hardware,
    load_hardware,
)

GOOD = {
    "name": "mine",
    "description": "one card",
    "source": "made up",
    "stepTime": {"baseMilliseconds": 20, "perPrefillTokenMicroseconds": 100},
    "maxNumBatchedTokens": 2048,
    "workload": {"promptTokens": 8192},
}


def test_step_time_is_the_sum_of_its_parts() -> None:
    cost = StepTime(
        base_milliseconds=20,
        per_decoder_milliseconds=0.5,
        per_prefill_token_microseconds=100,
        per_prefill_pair_nanoseconds=2,
    )
    # 20 ms, 4 decoders at 0.5 ms, 1,000 tokens at 0.1 ms, and 1,000 * (9,000 + 500) pairs at 2 ns.
    assert cost.seconds(4, 1_000, 1_000 * 9_500.0) == pytest.approx(0.020 + 0.002 + 0.100 + 0.019)


def test_every_model_of_ours_is_valid_and_says_what_it_rests_on() -> None:
    assert known_hardware() == ["v100x2", "v100x2-any-page", "v100x4"]
    for name in known_hardware():
        model = load_hardware(name)
        assert model.name == name
        assert len(model.source) > 50


def test_both_page_paths_differ_in_attention_only_by_the_published_ratio() -> None:
    slow, fast = load_hardware("v100x2"), load_hardware("v100x2-any-page")
    ratio = slow.step_time.per_prefill_pair_nanoseconds / fast.step_time.per_prefill_pair_nanoseconds
    assert ratio == pytest.approx(104.4 / 43.99, rel=0.005)
    same = fast.step_time.model_copy(
        update={"per_prefill_pair_nanoseconds": slow.step_time.per_prefill_pair_nanoseconds}
    )
    assert same == slow.step_time
    assert fast.workload == slow.workload


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    assert load_hardware(str(path)).workload.prompt_tokens == 8_192


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stepTime": {"baseMilliseconds": -1, "perPrefillTokenMicroseconds": 1}}, r"stepTime\.baseMilliseconds"),
        ({"stepTime": {"baseMilliseconds": 0, "perPrefillTokenMicroseconds": 1}}, "should be greater than 0"),
        ({"tokensPerStep": 3.5}, "tokensPerStep 3.5 needs at least 2.5 draftTokens"),
        ({"draftTokens": 3, "asynchronous": True}, "synchronous scheduling only"),
        ({"maxNumBatchedTokens": 100}, "lower maxNumSeqs"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_file_is_told_with_the_field(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}))
    with pytest.raises(HardwareError, match=message):
        load_hardware(str(path))


@pytest.mark.parametrize(
    ("residents", "context", "prompt", "needed"),
    [
        (15, 1_000, 49_000, None),
        (16, 100, 100, "need 17 requests, and mine has maxNumSeqs 16"),
        (15, 1_000, 50_001, "need 65,001 tokens of KV cache, and mine has kvCacheTokens 65,000"),
    ],
)
def test_work_that_can_never_fit_is_told(residents: int, context: int, prompt: int, needed: str | None) -> None:
    small = {**GOOD, "maxNumSeqs": 16, "kvCacheTokens": 65_000}
    work = SimulatedWorkload(residents=residents, resident_context_tokens=context, prompt_tokens=prompt)
    with pytest.raises(HardwareError, match=needed) if needed else nullcontext():
        Hardware.model_validate(small).must_hold(work)


def test_residents_that_fill_every_step_leave_no_room_for_a_prompt() -> None:
    # 16 residents that verify 3 drafts take all of 64 tokens.
    tight = Hardware.model_validate({**GOOD, "maxNumBatchedTokens": 64, "maxNumSeqs": 64, "draftTokens": 3})
    tight.must_hold(SimulatedWorkload(residents=15, prompt_tokens=100))
    with pytest.raises(HardwareError, match="need 65 tokens a step, and mine has maxNumBatchedTokens 64"):
        tight.must_hold(SimulatedWorkload(residents=16, prompt_tokens=100))


def test_names_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="v100x2, v100x2-any-page, v100x4"):
        load_hardware("h100")
    with pytest.raises(HardwareError, match="can't be read"):
        load_hardware(str(tmp_path / "none.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(HardwareError, match="no YAML"):
        load_hardware(str(broken))

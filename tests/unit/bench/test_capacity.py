import pytest

from paceline.bench.capacity import PlanError, capacity_problems, check_capacity, longest_prompt, state_block_tokens
from paceline.bench.plan import Arm, ExperimentPlan, MixedPhase
from paceline.bench.records import EngineFingerprint

HYBRID = {"mamba_cache_mode": "align", "enable_prefix_caching": "True", "block_size": "256"}


def engine(**known: object) -> EngineFingerprint:
    return EngineFingerprint.model_validate(
        {"model": "m", "max_model_len": 32_768, "cache_config": {"block_size": "16"}, **known}
    )


def plan(prompt: int | None = 16_384, residents: int = 2, resident_prompt: int = 128) -> ExperimentPlan:
    work = MixedPhase(
        residents=residents,
        resident_prompt_tokens=resident_prompt,
        injected_prompt_tokens=prompt,
        target_prefill_seconds=None if prompt else 12.0,
    )
    return ExperimentPlan(name="x", arms=(Arm(name="off"),), workload=work)


@pytest.mark.parametrize(
    ("asked", "known", "said"),
    [
        (plan(), {}, []),
        (plan(), {"max_model_len": None}, ["does not tell its max_model_len"]),
        (plan(prompt=32_760), {}, []),
        (plan(prompt=32_761), {}, ["use at most 32760", "raise spec.model.maxModelLen to 32769"]),
        (plan(resident_prompt=32_760), {}, ["leaves the residents no room", "use at most 16384"]),
        (plan(residents=15), {"max_num_seqs": 16}, []),
        (plan(residents=16), {"max_num_seqs": 16}, ["use at most 15 residents", "spec.engine.maxNumSeqs to 17"]),
        # A plain model may cut a prompt anywhere: one token beside the residents is enough.
        (plan(residents=15), {"max_num_batched_tokens": 16}, []),
        (plan(residents=16), {"max_num_batched_tokens": 16}, ["raise it to at least 17", "at most 15 residents"]),
        # A hybrid model's chunk must fill a state block beside the residents.
        (plan(), {"max_num_batched_tokens": 258, "cache_config": HYBRID}, []),
        (
            plan(),
            {"max_num_batched_tokens": 257, "cache_config": HYBRID},
            ["too small for a prefill chunk of 256 tokens beside 2 residents", "raise it to at least 258"],
        ),
        (plan(), {"max_num_batched_tokens": 257, "cache_config": {**HYBRID, "enable_prefix_caching": "False"}}, []),
        (plan(), {"cache_config": {"kv_cache_size_tokens": "16656"}}, []),
        (plan(), {"cache_config": {"kv_cache_size_tokens": "16655"}}, ["holds 16656 tokens at once", "16655"]),
        (plan(prompt=None), {}, []),
    ],
)
def test_what_the_engine_can_not_run_is_refused_with_the_number_to_use(
    asked: ExperimentPlan, known: dict[str, object], said: list[str]
) -> None:
    problems = capacity_problems(asked, engine(**known))
    assert len(problems) == bool(said)
    for words in said:
        assert words in problems[0]


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        check_capacity(plan(prompt=40_000, residents=20), engine(max_num_seqs=16, max_num_batched_tokens=16))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("config", "block"),
    [
        (HYBRID, 256),
        ({"block_size": "16"}, None),
        ({**HYBRID, "mamba_cache_mode": "none"}, None),
        ({**HYBRID, "enable_prefix_caching": "False"}, None),
        ({}, None),
    ],
)
def test_only_aligned_hybrid_models_have_a_state_block(config: dict[str, str], block: int | None) -> None:
    assert state_block_tokens(engine(cache_config=config)) == block


@pytest.mark.parametrize(
    ("known", "longest"),
    [
        ({}, 32_760),
        ({"cache_config": {"kv_cache_size_tokens": "20000"}}, 20_000 - 2 * (128 + 8)),
        ({"cache_config": {"kv_cache_size_tokens": "100"}}, 0),
    ],
)
def test_the_longest_prompt_fits_the_model_and_the_cache(known: dict[str, object], longest: int) -> None:
    assert longest_prompt(plan(prompt=None), engine(**known)) == longest

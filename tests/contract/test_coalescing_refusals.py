"""Which requests and which engines are never coalesced, each with its reason."""

from copy import copy

import pytest
from hybrid import ON, OUTPUT_TOKEN, Engine, prompt
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

from paceline.engine_ext.coalescing.admission import engine_obstacles, request_refusal
from paceline.engine_ext.coalescing.plan import Refusal


def fresh():
    return Engine(ON).add("a", prompt(1000))


def test_a_fresh_prompt_is_not_refused():
    assert request_refusal(fresh(), 0) is None


def test_tokens_loaded_from_elsewhere_are_refused():
    assert request_refusal(fresh(), 64) is Refusal.EXTERNAL_TOKENS


def test_a_prompt_that_was_preempted_is_refused():
    request = fresh()
    request.num_preemptions = 1
    assert request_refusal(request, 0) is Refusal.PREEMPTED


def test_a_request_that_goes_on_with_output_is_refused():
    request = fresh()
    request.append_output_token_ids(OUTPUT_TOKEN)
    assert request_refusal(request, 0) is Refusal.NOT_A_FRESH_PROMPT


def test_a_prompt_with_an_image_is_refused():
    request = fresh()
    place = PlaceholderRange(offset=10, length=20)
    request.mm_features = [MultiModalFeatureSpec(data=None, modality="image", identifier="i", mm_position=place)]
    assert request_refusal(request, 0) is Refusal.MULTIMODAL


def test_this_engine_has_no_obstacle():
    assert list(engine_obstacles(Engine(ON).scheduler)) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"connector": object()}, "a KV connector loads or stores blocks"),
        ({"num_spec_tokens": 2}, "speculative decoding is on"),
        ({"mamba_partial_cache_hit": True}, "prefixes are cached at a finer grain than a block"),
        ({"num_prefill_lookahead": 2}, "the engine recomputes or looks ahead in prompts"),
        ({"prefix_replay_tokens": 16}, "the engine recomputes or looks ahead in prompts"),
    ],
)
def test_why_an_engine_is_not_coalesced(changes, told):
    scheduler = Engine(ON).scheduler
    vars(scheduler).update(changes)
    assert list(engine_obstacles(scheduler)) == [told]


def test_pipeline_stages_are_an_obstacle():
    scheduler = Engine(ON).scheduler
    scheduler.parallel_config = copy(scheduler.parallel_config)  # shared by every engine of the same options
    scheduler.parallel_config.pipeline_parallel_size = 2
    assert list(engine_obstacles(scheduler)) == ["pipeline parallelism is on"]

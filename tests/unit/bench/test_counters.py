"""Case B4: counters before and after, several engine labels, and an engine that was restarted in between."""

import pytest

from paceline.bench.counters import CACHE_HITS, PREFILL_TIME, Page, counter_delta, moved, parse_page, was_reset


def page(hits: dict[str, float], created: float = 100.0, prefills: tuple[float, int] = (0.0, 0)) -> Page:
    lines = ["# HELP vllm:prefix_cache_hits_total Hits.", "# TYPE vllm:prefix_cache_hits_total counter"]
    lines += [f'vllm:prefix_cache_hits_total{{engine="{engine}",model_name="m"}} {n}' for engine, n in hits.items()]
    lines += [f'vllm:prefix_cache_hits_created{{engine="{engine}",model_name="m"}} {created}' for engine in hits]
    lines += [f'vllm:request_prefill_time_seconds_sum{{engine="0"}} {prefills[0]}']
    lines += [f'vllm:request_prefill_time_seconds_count{{engine="0"}} {prefills[1]}']
    return parse_page("\n".join(lines) + "\n")


def test_engine_labels_are_summed() -> None:
    before, after = page({"0": 10, "1": 100}), page({"0": 16, "1": 108})
    assert after.total("vllm:prefix_cache_hits_total") == 124
    assert moved(before, after, CACHE_HITS) == 14
    assert counter_delta(before, after).prefix_cache_hits == 14


def test_a_histogram_moves_by_its_sum_and_count() -> None:
    before, after = page({"0": 0}, prefills=(1.5, 3)), page({"0": 0}, prefills=(4.0, 4))
    assert moved(before, after, f"{PREFILL_TIME}_sum") == 2.5
    assert moved(before, after, f"{PREFILL_TIME}_count") == 1


@pytest.mark.parametrize(
    ("after", "reset"),
    [
        (page({"0": 10, "1": 5}), False),
        (page({"0": 12, "1": 6}), False),
        (page({"0": 9, "1": 6}), True),  # one engine went back, though the sum did not
        (page({"0": 50, "1": 50}, created=200.0), True),  # restarted, and has passed its old count since
        (page({"0": 12}), True),  # an engine is gone
        (page({"0": 10, "1": 5, "2": 1}), False),  # another one came
    ],
)
def test_a_restart_between_two_reads_is_seen(after: Page, *, reset: bool) -> None:
    before = page({"0": 10, "1": 5})
    assert was_reset(before, after) is reset
    assert counter_delta(before, after).reset is reset


def test_a_counter_that_the_engine_lacks_is_none_and_not_zero() -> None:
    delta = counter_delta(page({"0": 1}), page({"0": 1}))
    assert delta.prefix_cache_hits == 0
    assert delta.preemptions is None
    assert delta.prompt_tokens is None


def test_labels_of_an_information_series() -> None:
    found = parse_page('vllm:cache_config_info{block_size="256",mamba_cache_mode="align"} 1.0\n')
    assert found.labels("vllm:cache_config_info") == {"block_size": "256", "mamba_cache_mode": "align"}
    assert found.labels("vllm:nothing") == {}

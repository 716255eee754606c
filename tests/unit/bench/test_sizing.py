import math

import pytest
from bench_fakes import FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.clock import RunClock
from paceline.bench.engine import EngineAddress, EngineClient, EngineError
from paceline.bench.sizing import Probe, size_for, size_prompt


@pytest.mark.parametrize(
    ("short", "long", "target", "tokens", "seconds"),
    [
        # 1 ms a token, nothing squared: 12 s are 12,000 tokens, rounded up to 47 times 256.
        (Probe(1_024, 1.024), Probe(2_048, 2.048), 12.0, 12_032, 12.032),
        # 1 ms a token and 0.1 us a squared token: n + n^2/10,000 = 12,000 ms at n = 7,042.
        (Probe(1_000, 1.1), Probe(2_000, 2.4), 12.0, 7_168, 7.168 + 5.1380224),
        # A second probe that seems cheaper by the token is taken as a straight line.
        (Probe(1_024, 4.096), Probe(2_048, 4.096), 8.0, 4_096, 8.192),
    ],
)
def test_sizes_by_hand(short: Probe, long: Probe, target: float, tokens: int, seconds: float) -> None:
    found = size_for(short, long, target, longest_tokens=100_000)
    assert (found.tokens, found.limited) == (tokens, False)
    assert math.isclose(found.seconds, seconds, rel_tol=1e-6)


def test_the_engine_may_hold_less_than_was_asked() -> None:
    found = size_for(Probe(1_024, 1.024), Probe(2_048, 2.048), 12.0, longest_tokens=8_000)
    assert (found.tokens, found.limited) == (8_000, True)
    assert math.isclose(found.seconds, 8.0)


@given(st.floats(1e-6, 1e-2), st.floats(0, 1e-6), st.integers(64, 4_096), st.floats(0.1, 100))
def test_the_prefill_is_never_shorter_than_asked(
    per_token: float, per_square: float, probe: int, target: float
) -> None:
    def seconds(tokens: int) -> float:
        return per_token * tokens + per_square * tokens**2

    found = size_for(Probe(probe, seconds(probe)), Probe(2 * probe, seconds(2 * probe)), target, 10**12)
    assert seconds(found.tokens) >= target * 0.999
    assert seconds(found.tokens - 256) <= target * 1.001


async def test_an_idle_engine_is_probed_with_growing_prompts() -> None:
    fake, clock = FakeEngine(), RunClock()
    async with fake.serve() as url, EngineClient(EngineAddress(url)) as client:
        await client.fingerprint()
        found = await size_prompt(
            client, clock, await client.prompt_pool(), "run-1", target_seconds=60.0, longest=2_048
        )
    probed = [int(request.rsplit("-", 2)[1]) for request in fake.started]
    assert probed == [512, 512, 1_024, 1_024, 2_048, 2_048]
    assert (found.tokens, found.limited) == (2_048, True)
    assert fake.counters["vllm:prefix_cache_hits"] == 0


async def test_a_probe_that_fails_says_so() -> None:
    fake = FakeEngine(faults={"size-512": "refused"})
    async with fake.serve() as url, EngineClient(EngineAddress(url)) as client:
        await client.fingerprint()
        pool = await client.prompt_pool()
        with pytest.raises(EngineError, match=r"a probe of 512 tokens.*too long"):
            await size_prompt(client, RunClock(), pool, "run-1", target_seconds=1.0, longest=2_048)

"""The source's own table in virtual time: the real scheduler's passes, and the straight line fitted to one row of it.

TTFT = passes * 0.209 s + tokens * 0.272 ms was fitted on the two times of 16228 tokens. What ran before the source's
change is rebuilt from the ladder of retained positions, since no vLLM has that code; what runs after it is scheduled.
"""

import pytest
from hybrid import ON, Engine, Options, prompt

from paceline.engine_ext.coalescing.plan import Grids, SpanLimits, prefill_spans

SECONDS_A_PASS = 0.209
SECONDS_A_TOKEN = 0.000272
SOURCE = Options(block=512, budget=8192)
GRIDS = Grids(512, 2048, keeps_previous=True)


@pytest.mark.parametrize(
    ("tokens", "before", "after", "tolerance"),
    [
        (16228, 5.668, 4.831, 0.05),
        (16383, 5.621, 5.308, 0.10),  # its last span's rows are no multiple of four: the source says it gains less
        (32319, 10.354, 10.020, 0.10),  # the same
        (8192, 2.440, 2.421, 0.05),
        (16384, 5.001, 4.826, 0.05),
        (32768, 9.863, 9.830, 0.05),
    ],
)
def test_every_row_of_the_source_follows_from_its_passes(tokens, before, after, tolerance):
    engine = Engine(ON, SOURCE)
    engine.add("a", prompt(tokens))
    engine.run()
    passes = len(engine.lengths("a"))
    ladder = len(list(prefill_spans(tokens, 8192, GRIDS, SpanLimits(), off_grid=False)))
    assert passes * SECONDS_A_PASS + tokens * SECONDS_A_TOKEN == pytest.approx(after, rel=tolerance)
    assert ladder * SECONDS_A_PASS + tokens * SECONDS_A_TOKEN == pytest.approx(before, rel=tolerance)

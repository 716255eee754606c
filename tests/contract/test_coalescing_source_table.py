"""The source's own table in virtual time: the real scheduler's passes, and the straight line fitted to one row of it.

TTFT = passes * 0.209 s + tokens * 0.272 ms was fitted on the two times of 16228 tokens. A pass more or less would stay
within 5 % of most rows, so the passes are held too: what ran before the source's change is the ladder's scheduler.
"""

import sys
from pathlib import Path

import pytest
from hybrid import ON, Engine, Options, prompt

from paceline.engine_ext.scheduler import PacedScheduler

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from ladder_scheduler import LADDER, LadderScheduler

SECONDS_A_PASS = 0.209
SECONDS_A_TOKEN = 0.000272
SOURCE = Options(block=512, budget=8192)
BEFORE, AFTER = (LadderScheduler, LADDER), (PacedScheduler, ON)


@pytest.mark.parametrize(
    ("tokens", "change", "passes", "reported", "tolerance"),
    [
        (16228, BEFORE, [8192, 4096, 2048, 1024, 512, 356], 5.668, 0.001),  # the line was fitted on this row
        (16228, AFTER, [8192, 8036], 4.831, 0.001),
        (16383, BEFORE, [8192, 4096, 2048, 1024, 512, 511], 5.621, 0.05),
        (16383, AFTER, [8192, 8191], 5.308, 0.10),  # its last span's rows are no multiple of four: it gains less
        (32319, BEFORE, [8192, 8192, 8192, 4096, 2048, 1024, 512, 63], 10.354, 0.05),
        (32319, AFTER, [8192, 8192, 8192, 7743], 10.020, 0.10),  # the same
        (8192, BEFORE, [8192], 2.440, 0.05),
        (8192, AFTER, [8192], 2.421, 0.05),
        (16384, BEFORE, [8192, 8192], 5.001, 0.05),
        (16384, AFTER, [8192, 8192], 4.826, 0.05),
        (32768, BEFORE, [8192, 8192, 8192, 8192], 9.863, 0.05),
        (32768, AFTER, [8192, 8192, 8192, 8192], 9.830, 0.05),
    ],
)
def test_every_row_of_the_source_follows_from_its_passes(tokens, change, passes, reported, tolerance):
    scheduler, coalescing = change
    engine = Engine(coalescing, SOURCE, scheduler)
    engine.add("a", prompt(tokens))
    engine.run()
    assert engine.lengths("a") == passes
    seconds = sum(SECONDS_A_PASS + length * SECONDS_A_TOKEN for length in engine.lengths("a"))
    assert seconds == pytest.approx(reported, rel=tolerance)

"""Two pipeline stages: a resident whose step is in flight can't be scheduled, and no step may then be left empty."""

from itertools import pairwise

import pytest
from harness import Driver, Options, fixed


@pytest.mark.parametrize("residents", [1, 2, 3])
def test_no_step_is_empty_while_a_prefill_waits(residents: int) -> None:
    driver = Driver(Options(pipeline=2), fixed(64))
    for index in range(residents):
        driver.add(f"resident{index}", 10, 400)
        driver.step()
    driver.step(4)
    driver.add("newcomer", 600, 5)
    while not driver.outputs["newcomer"]:
        driver.step()
        assert driver.steps[-1].tokens, "an empty step while a prefill waits"
    driver.run_until_done(2_000)
    for name in driver.requests:
        driver.assert_whole(name)


def test_prefills_are_held_while_some_resident_can_be_scheduled() -> None:
    driver = Driver(Options(pipeline=2), fixed(8))
    driver.add("even", 10, 400)
    driver.step()
    driver.add("odd", 10, 400)  # decodes in the steps between
    driver.step(5)
    driver.add("newcomer", 600, 5)
    driver.step(40)
    steps = driver.chunk_steps("newcomer")
    assert [after - before for before, after in pairwise(steps)] == [8] * (len(steps) - 1)
    assert len(steps) == 5

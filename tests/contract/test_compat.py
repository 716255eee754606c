"""The table of hooks against the vLLM that is installed here."""

import inspect
from dataclasses import replace

import pytest
from engines import ENGINE, SUPPORT
from harness import Driver, fixed

from paceline.engine_ext import compat

HOOKS = [hook for hook in compat.HOOKS if hook.feature in SUPPORT.features]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: f"{hook.feature}-{hook.target.rpartition(':')[2]}")
def test_source_of_every_hook_is_one_that_was_tested(hook: compat.Hook) -> None:
    assert compat.check(hook) is None, f"digest {compat.digest(inspect.getsource(compat.resolve(hook.target)))}"
    assert any(ENGINE in versions for versions in hook.tested.values())


def test_changed_source_is_noticed_with_the_tested_versions() -> None:
    hook = replace(compat.HOOKS[0], tested={"0" * 16: ("0.32.0", "0.33.0"), "1" * 16: ("0.31.0",)})
    assert compat.check(hook) == f"{hook.target} of this engine differs from those tested (vLLM 0.31.0, 0.32.0, 0.33.0)"


@pytest.mark.parametrize("target", ["vllm.v1.core.sched.scheduler:Scheduler.gone", "vllm.nowhere:Thing"])
def test_missing_hook_is_noticed(target: str) -> None:
    problem = compat.check(replace(compat.HOOKS[0], target=target))
    assert problem is not None
    assert problem.startswith(f"this engine has no {target}")


def test_hook_that_a_version_does_without_may_be_missing() -> None:
    hook = replace(compat.HOOKS[0], target="vllm.v1.core.sched.scheduler:Scheduler.gone", tested={compat.ABSENT: "0.1"})
    assert compat.check(hook) is None


def test_engine_outside_the_table_runs_unpaced_and_says_why() -> None:
    driver = Driver()
    driver.scheduler.incompatible = ("Scheduler.schedule of this engine differs",)
    driver.scheduler.unpaced_reasons = list(driver.scheduler.incompatible)
    driver.set_pacing(fixed(8))
    driver.add("resident", 10)
    driver.step(2)
    driver.add("newcomer", 300)
    driver.step(6)
    assert driver.chunk_steps("newcomer") == [3, 4, 5, 6, 7]
    assert not driver.scheduler.paced

"""The work queue: one pass at a time for a key, none lost, none twice."""

import asyncio

from paceline.operator.queue import WorkQueue


async def test_a_key_waits_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    queue.done("a")
    queue.done("b")
    assert queue.is_idle


async def test_a_key_that_changes_while_it_is_worked_on_comes_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    assert not queue.is_idle
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done(), "never two workers on one key"
    queue.done("a")
    assert await waiting == "a"


async def test_the_sooner_of_two_times_holds() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3600)
    queue.add_after("a", 0)
    assert await asyncio.wait_for(queue.get(), 10) == "a"
    queue.done("a")
    queue.add_after("b", 0)
    queue.add_after("b", 3600)
    assert await asyncio.wait_for(queue.get(), 10) == "b"


async def test_an_addition_now_takes_the_place_of_one_due_later() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    queue.add_after("end", 0.05)
    assert await asyncio.wait_for(queue.get(), 10) == "end", "the earlier timer is gone"

"""The ring of finished steps: what it keeps, and how it is paged through."""

from types import SimpleNamespace

from paceline.engine_ext.telemetry.steps import RING_REQUESTS, RING_STEPS, StepLog


def log_of(steps: int, requests: int = 1) -> StepLog:
    """Return a log of `steps` finished steps with `requests` decoders each."""
    log = StepLog()
    for _ in range(steps):
        scheduled = {str(request): 1 for request in range(requests)}
        output = SimpleNamespace(
            num_scheduled_tokens=scheduled, total_num_scheduled_tokens=requests, preempted_req_ids=None
        )
        log.in_flight.append((output, 0.0, 1, None))
        log.finish(output, 1.0)
    return log


def numbers(log: StepLog, after: int | None, limit: int) -> list[int]:
    return [record.step for record in log.page(after, limit)]


def test_pages_follow_each_other_without_a_gap() -> None:
    log = log_of(7)
    assert numbers(log, None, 3) == [5, 6, 7]
    assert numbers(log, None, 0) == []
    assert [numbers(log, after, 3) for after in (0, 3, 6, 7, 9)] == [[1, 2, 3], [4, 5, 6], [7], [], []]
    assert numbers(StepLog(), 0, 3) == numbers(StepLog(), None, 3) == []


def test_steps_that_never_finished_leave_a_gap_that_paging_steps_over() -> None:
    log = log_of(2)
    lost = SimpleNamespace(num_scheduled_tokens={"0": 1}, total_num_scheduled_tokens=1, preempted_req_ids=None)
    log.in_flight.append((lost, 0.0, 1, None))
    after = SimpleNamespace(num_scheduled_tokens={"0": 1}, total_num_scheduled_tokens=1, preempted_req_ids=None)
    log.in_flight.append((after, 0.0, 1, None))
    log.finish(after, 1.0)
    assert numbers(log, 1, 5) == [2, 4]
    assert numbers(log, 2, 5) == [4]


def test_the_oldest_steps_make_room() -> None:
    log = log_of(RING_STEPS + 3)
    assert (log.records[0].step, log.records[-1].step) == (4, RING_STEPS + 3)
    # A paced prompt of 64 chunks, one every 128 steps, is still there whole.
    assert len(log.records) >= 64 * 128


def test_a_crowded_engine_keeps_fewer_steps() -> None:
    log = log_of(RING_REQUESTS // 4096 + 5, requests=4096)
    assert [record.step for record in log.records] == list(range(6, RING_REQUESTS // 4096 + 6))

"""Streaming sessions: one request that gets further input; its prefill's deadline counts from that input's arrival."""

from harness import Driver, Options
from test_promise import promise
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

DELAY_SECONDS = 60


def send(driver: Driver, prompt: int) -> None:
    """Send a session's next input, to be answered with three tokens."""
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0.0)
    params.update_from_generation_config({}, eos_token_id=2)
    request = Request(
        request_id="session",
        prompt_token_ids=list(range(prompt)),
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=driver.hasher,
        resumable=True,
    )
    driver.requests.setdefault("session", request)
    driver.outputs.setdefault("session", [])
    driver.scheduler.add_request(request)


def test_deadline_of_a_sessions_input_counts_from_its_own_arrival() -> None:
    driver = Driver(Options(budget=128), promise(400, delay=DELAY_SECONDS))
    driver.add("resident", 10, 100_000)
    send(driver, 50)
    session = driver.requests["session"]
    while session.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
        driver.step()
    while driver.seconds < DELAY_SECONDS + 10:
        driver.step()
    send(driver, 400)
    send(driver, 40)  # comes while the one before is still computed, and waits for it
    while len(driver.outputs["session"]) < 9:
        driver.step()
        assert not driver.scheduler.slo.escaping
    report = driver.scheduler.slo.report()
    assert (report["prefillsKept"], report["prefillsBroken"]) == (4, 0)  # the resident's, and one for each input

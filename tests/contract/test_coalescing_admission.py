"""In which company a prompt's last span runs in one pass, on vLLM's real scheduler."""

from concurrent.futures import Future

from hybrid import ON, Engine, Options, prompt
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from paceline.engine_ext.settings import CoalescingAdmission, CoalescingSettings, FinalChunk


def test_exclusive_admission_refuses_a_decoder_beside_it_until_it_is_changed():
    engine = Engine(CoalescingSettings(final_chunk=FinalChunk.ENABLED, admission=CoalescingAdmission.EXCLUSIVE))
    engine.add("d", prompt(20, seed=1), max_tokens=30)
    engine.step()
    engine.add("a", prompt(1000, seed=9))
    for _ in range(3):
        engine.step()
    assert engine.lengths("a") == [960, 40]
    assert engine.report["notPlanned"]["NotAlone"] >= 1
    engine.set(coalescing=ON)
    engine.add("b", prompt(1000, seed=4))
    engine.step()
    assert engine.lengths("b") == [1000]
    engine.run()
    assert len(engine.lengths("d")) == 30  # it decoded beside all of them


def test_exclusive_admission_plans_a_request_that_is_alone():
    engine = Engine(CoalescingSettings(final_chunk=FinalChunk.ENABLED, admission=CoalescingAdmission.EXCLUSIVE))
    engine.add("a", prompt(1000))
    engine.run()
    assert engine.lengths("a") == [1000]


def test_a_second_prefill_keeps_both_from_being_coalesced():
    engine = Engine(ON)
    engine.add("a", prompt(700, seed=1))
    engine.add("b", prompt(700, seed=2))
    engine.run()
    assert engine.lengths("a") == [640, 60]
    assert engine.report["notPlanned"]["OtherPrefill"] >= 1


def test_a_waiting_prompt_counts_even_when_it_has_no_slot():
    engine = Engine(ON, Options(max_seqs=1))
    engine.add("a", prompt(700, seed=1))
    engine.add("b", prompt(700, seed=2))
    engine.run()
    assert engine.lengths("a") == [640, 60]
    assert engine.lengths("b") == [700]


def test_a_prompt_that_is_skipped_in_this_very_step_counts():
    engine = Engine(ON)
    skipped = engine.add("s", prompt(700, seed=1))
    skipped.structured_output_request = StructuredOutputRequest(StructuredOutputsParams(regex="a"), Future())
    skipped.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    engine.add("a", prompt(700, seed=2))
    engine.step()
    assert engine.lengths("a") == [640]
    assert engine.report["notPlanned"] == {"OtherPrefill": 1}

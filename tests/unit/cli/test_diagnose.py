"""An engine's log, and the plain reason that is given for its end."""

import signal

import pytest

from paceline.cli.local.diagnose import TAIL_LINES, diagnose

# Lines as vLLM 0.32 and its libraries print them, cut short.
CASES = {
    "port": (
        "OSError: [Errno 98] Address already in use",
        "a port that it wanted is in use",
        "--port",
    ),
    "argument": (
        "api_server.py: error: unrecognized arguments: --no-such-thing 3",
        "vLLM does not take the argument: --no-such-thing 3",
        "extraArgs",
    ),
    "argument value": (
        "api_server.py: error: argument --max-logprobs: invalid int value: 'x'",
        "vLLM does not take the argument: --max-logprobs: invalid int value: 'x'",
        "extraArgs",
    ),
    "module": (
        "ModuleNotFoundError: No module named 'paceline.engine_ext.scheduler'",
        "a Python module could not be imported: No module named 'paceline.engine_ext.scheduler'",
        "--engine-python",
    ),
    "main module": (
        "/venv/bin/python: No module named vllm.entrypoints",
        "a Python module could not be imported: vllm.entrypoints",
        "--engine-python",
    ),
    "GPU memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "it ran out of memory",
        "spec.engine.kvCache",
    ),
    "main memory": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory",
        "it ran out of memory",
        "spec.engine.kvCache",
    ),
    "cache": (
        "ValueError: To serve at least one request with the model's max seq len (32768), (4.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.00 GiB).",
        "the KV cache is too small for the model's length",
        "spec.model.maxModelLen",
    ),
    "weights": (
        "RuntimeError: Cannot find any model weights with `/models/x`",
        "the model was not found where the profile says",
        "spec.model.source",
    ),
    "repository": (
        "OSError: nobody/nothing is not a local folder and is not a valid model identifier listed on the hub",
        "the model was not found where the profile says",
        "spec.model.source",
    ),
    "device": (
        "RuntimeError: Failed to infer device type, please set VLLM_LOGGING_LEVEL=DEBUG",
        "vLLM found no device that it supports",
        "spec.engine.accelerator",
    ),
    "length": (
        "  Value error, User-specified max_model_len (99) is greater than the derived max_model_len (9)",
        "spec.model.maxModelLen is more than the model allows",
        "spec.model.maxModelLen",
    ),
    "database": (
        "sqlite3.OperationalError: attempt to write a readonly database",
        "its database file cannot be written",
        "PACELINE_STATE_DIR",
    ),
    "configuration": (
        "ValueError: The page size is odd",
        "it refused its configuration: The page size is odd",
        "profile",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_known_faults_are_told_in_plain_words(case: str) -> None:
    line, meaning, advice = CASES[case]
    log = [
        "(APIServer pid=1) INFO 11-29 19:29:52 [api_utils.py:286] non-default args: {}",
        "Traceback (most recent call last):",
        f"(EngineCore pid=2) ERROR 11-29 19:30:00 [core.py:1] {line}",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    found = diagnose("the engine", 1, log, ready=False)
    assert found.summary.startswith(f"the engine ended before it was ready with status 1: {meaning}")
    assert found.advice is not None
    assert advice in found.advice
    assert log[2] in found.lines


def test_harmless_lines_of_a_sound_engine_are_no_reasons() -> None:
    log = [
        "(Worker pid=3) WARNING 11-29 19:30:00 [x.py:1] ModuleNotFoundError: No module named 'triton'",
        "(APIServer pid=1) INFO 11-29 19:30:00 [x.py:1] falling back after: Address already in use",
    ]
    found = diagnose("the engine", 1, log, ready=False)
    assert (
        found.summary == "the engine ended before it was ready with status 1, for a reason that only its log can tell"
    )
    assert found.advice is None


def test_a_cause_far_above_the_end_is_still_shown() -> None:
    cause = "ModuleNotFoundError: No module named 'x'"
    log = [cause, *(f"noise {number}" for number in range(50))]
    lines = diagnose("the engine", 1, log, ready=False).lines
    assert lines[:2] == (cause, "...")
    assert lines[-1] == "noise 49"
    assert len(lines) == TAIL_LINES


def test_a_kill_of_a_running_engine_names_the_signal_and_memory() -> None:
    found = diagnose("the engine", -signal.SIGKILL, ["all is well"], ready=True)
    assert found.summary == "the engine ended while running: killed by SIGKILL"
    assert "memory" in str(found.advice)


def test_unknown_signals_have_numbers() -> None:
    assert "killed by signal 99" in diagnose("the engine", -99, [], ready=False).summary


def test_an_empty_log_is_no_fault() -> None:
    assert diagnose("the engine", None, [], ready=False).lines == ()

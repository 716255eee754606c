"""Why an engine or a control API ended, in plain words, from its exit status and the end of its log."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TAIL_LINES: Final = 12
"""How many lines of a log are shown."""

_HARMLESS: Final = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d |\bwarnings\.warn|Warning: ")
"""Lines that an engine which is well prints too."""


@dataclass(frozen=True)
class Reason:
    """A known fault: what in the log gives it away, what it means, and what to do."""

    pattern: re.Pattern[str]
    meaning: str
    advice: str


def _reason(pattern: str, meaning: str, advice: str) -> Reason:
    return Reason(re.compile(pattern, re.IGNORECASE), meaning, advice)


REASONS: Final = (
    _reason(
        r"address already in use|errno 98",
        "a port that it wanted is in use",
        "Choose another with --port, --admin-port or --api-port (0 takes any free one).",
    ),
    _reason(
        r"unrecognized arguments?: (?P<detail>.+)|argument (?P<other>--?[\w-]+.*: (?:invalid|expected).*)",
        "vLLM does not take the argument: {detail}",
        "Correct spec.engine.extraArgs in the profile.",
    ),
    _reason(
        r"(?:ModuleNotFoundError|ImportError)\S*\s+(?P<detail>.+)|No module named (?P<other>\S+)",
        "a Python module could not be imported: {detail}",
        "Check the engine's environment (`make engine-env`), or name another with --engine-python.",
    ),
    _reason(
        r"CUDA out of memory|OutOfMemoryError|MemoryError\b|cannot allocate memory|DefaultCPUAllocator",
        "it ran out of memory",
        "Lower spec.engine.kvCache (sizeGibibytes or memoryUtilizationPercent), maxNumSeqs or maxModelLen.",
    ),
    _reason(
        r"(?:larger than the maximum number of tokens|needed, which is larger than the available KV cache memory"
        r"|No available memory for the cache blocks).*",
        "the KV cache is too small for the model's length",
        "Raise spec.engine.kvCache, or lower spec.model.maxModelLen.",
    ),
    _reason(
        r"Free memory on device .* less than desired GPU memory utilization",
        "the GPU has less free memory than the profile asks for",
        "Free the GPU, or lower spec.engine.kvCache.memoryUtilizationPercent.",
    ),
    _reason(
        r"(?:does not appear to have a file named|Repository Not Found|RepositoryNotFoundError|Repo id must be"
        r"|Invalid repository ID or local directory|is not a local folder and is not a valid model identifier"
        r"|Cannot find any model weights|Incorrect path_or_model_id)",
        "the model was not found where the profile says, or files of it are missing",
        "Check spec.model.source.",
    ),
    _reason(
        r"GatedRepoError|401 Client Error|access to model .* is restricted",
        "the model may be loaded with an access token only",
        "Set HF_TOKEN in the environment of `paceline up`.",
    ),
    _reason(
        r"(?:ConnectionError|MaxRetryError|LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to)",
        "the model could not be downloaded",
        "Check the network, or download the model and name its folder: spec.model.source: file:///...",
    ),
    _reason(
        r"No supported device detected|Failed to infer device type|no CUDA-capable device|Found no NVIDIA driver"
        r"|Torch not compiled with CUDA",
        "vLLM found no device that it supports",
        "Set spec.engine.accelerator to CPU with the CPU build of vLLM, or check the GPU's driver.",
    ),
    _reason(
        r"Model architectures? .* (?:not supported|failed to be inspected)",
        "this vLLM does not know the model's architecture",
        "Use a newer engine environment (--engine-python), or another model.",
    ),
    _reason(
        r"(?:user-specified|User-specified) max_model_len .* (?:is greater|exceeds)",
        "spec.model.maxModelLen is more than the model allows",
        "Lower spec.model.maxModelLen.",
    ),
    _reason(
        r"attempt to write a readonly database|unable to open database file",
        "its database file cannot be written",
        "Check the permissions of paceline.sqlite3 in the state folder, or choose another with PACELINE_STATE_DIR.",
    ),
    _reason(
        r"database or disk is full|No space left on device",
        "the disk is full",
        "Free some space, or move the state folder with PACELINE_STATE_DIR.",
    ),
    _reason(
        r"not enough semaphore|Resource temporarily unavailable|can't start new thread",
        "the system's limit of processes or threads was reached",
        "Raise the limit (ulimit -u), or set OMP_NUM_THREADS lower.",
    ),
    _reason(r"Permission denied: ?(?P<detail>\S+)", "it may not use {detail}", "Check the permissions."),
    _reason(
        r"ValueError: (?P<detail>.+)|ValidationError: (?P<other>.+)",
        "it refused its configuration: {detail}",
        "Correct the profile.",
    ),
)
"""Known faults, the more telling ones first."""


@dataclass(frozen=True)
class Diagnosis:
    """What ended a process: one sentence, what to do about it where known, and the lines that tell more."""

    summary: str
    advice: str | None
    lines: tuple[str, ...]


def diagnose(name: str, status: int | None, log: Sequence[str], *, ready: bool) -> Diagnosis:
    """Explain why the process called `name` ended with an exit status (negative for a signal).

    `ready` tells whether it had come up before; `log` holds the last lines of its output, at most some hundreds.
    """
    when = "ended while running" if ready else "ended before it was ready"
    found = _known(log)
    lines = _telling(log, None if found is None else found[0])
    if status is not None and status < 0 and (found is None or ready):
        return Diagnosis(f"{name} {when}: killed by {_signal_name(-status)}", _signal_advice(-status), lines)
    code = "" if status is None else f" with status {status}"
    if found is None:
        return Diagnosis(f"{name} {when}{code}, for a reason that only its log can tell", None, lines)
    _, meaning, advice = found
    return Diagnosis(f"{name} {when}{code}: {meaning}", advice, lines)


def _known(log: Sequence[str]) -> tuple[int, str, str] | None:
    for reason in REASONS:
        for index, line in enumerate(log):
            if not _HARMLESS.search(line) and (match := reason.pattern.search(line)):
                groups = match.groupdict()
                detail = (groups.get("detail") or groups.get("other") or "").strip()
                return index, reason.meaning.format(detail=detail), reason.advice
    return None


def _telling(log: Sequence[str], cause: int | None) -> tuple[str, ...]:
    # vLLM's last lines often say only "see root cause above": the line that gave the reason is always shown.
    last = [line.rstrip() for line in log if line.strip()][-TAIL_LINES:]
    if cause is None or log[cause].rstrip() in last:
        return tuple(last)
    return (log[cause].rstrip(), "...", *last[2:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_advice(number: int) -> str | None:
    if number == signal.SIGKILL:
        return (
            "If nobody killed it, the system ran out of memory (see `dmesg`): lower spec.engine.kvCache or maxNumSeqs."
        )
    if number == signal.SIGILL:
        return "This build of vLLM uses instructions that the processor does not have."
    return None

"""Hardware as the simulator sees it: how long a step takes, and what the scheduler may put into one."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from paceline.bench.wire import WireModel

SUFFIX: Final = ".yaml"

Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]


class HardwareError(Exception):
    """A hardware model that does not exist or does not hold what it must; the message says which and why."""


class StepTime(WireModel):
    """The duration of an engine step as a sum, in the terms in which the engine's own online model learns it.

    A pair is one query token of a prefill chunk with one key token before it: a chunk of c tokens after x tokens of
    context has c * (x + c / 2) of them.
    """

    base_milliseconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    per_decoder_milliseconds: Cost = 0.0
    per_prefill_token_microseconds: Cost
    per_prefill_pair_nanoseconds: Cost = 0.0

    def seconds(self, decoders: int, prefill_tokens: int, prefill_pairs: float) -> float:
        """Return the duration of a step."""
        return (
            self.base_milliseconds / 1e3
            + decoders * self.per_decoder_milliseconds / 1e3
            + prefill_tokens * self.per_prefill_token_microseconds / 1e6
            + prefill_pairs * self.per_prefill_pair_nanoseconds / 1e9
        )


class SimulatedWorkload(WireModel):
    """A mixed phase: residents that decode after long contexts, and one cold prompt that arrives."""

    residents: Annotated[int, Field(ge=1, le=1_024)] = 1
    resident_context_tokens: Tokens = 128
    prompt_tokens: Tokens


class Hardware(WireModel):
    """One engine on its hardware.

    `tokens_per_step` is what a decoding request gains in a step on average: more than 1 only with `draft_tokens`.
    `admission_seconds` pass between a request's arrival and the moment the scheduler sees it; they are taken over from
    a measurement, not predicted. `source` says what the numbers rest on.
    """

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str
    source: str
    step_time: StepTime
    max_num_batched_tokens: Tokens
    max_num_seqs: Annotated[int, Field(ge=1, le=4_096)] = 256
    kv_cache_tokens: Annotated[int, Field(ge=1_024, le=16_777_216)] = 1_048_576
    draft_tokens: Annotated[int, Field(ge=0, le=16)] = 0
    tokens_per_step: Annotated[float, Field(ge=1, le=17, allow_inf_nan=False)] = 1.0
    asynchronous: bool = False
    admission_seconds: Cost = 0.0
    workload: SimulatedWorkload

    @model_validator(mode="after")
    def _a_step_holds_every_sequence(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"maxNumBatchedTokens {self.max_num_batched_tokens} is below maxNumSeqs {self.max_num_seqs}, "
                "which vLLM refuses: lower maxNumSeqs"
            )
        return self

    @model_validator(mode="after")
    def _drafts_explain_the_tokens(self) -> Self:
        if self.tokens_per_step > 1 + self.draft_tokens:
            raise ValueError(
                f"tokensPerStep {self.tokens_per_step:g} needs at least {self.tokens_per_step - 1:g} draftTokens"
            )
        if self.draft_tokens and self.asynchronous:
            raise ValueError("draftTokens are simulated with synchronous scheduling only; leave asynchronous out")
        return self

    def must_hold(self, work: SimulatedWorkload) -> None:
        """Raise HardwareError where the prompt could never be computed beside the residents."""
        cached = work.residents * work.resident_context_tokens + work.prompt_tokens
        limits = (
            ("maxNumSeqs", self.max_num_seqs, "requests", work.residents + 1),
            ("maxNumBatchedTokens", self.max_num_batched_tokens, "tokens a step", self._step_tokens(work) + 1),
            ("kvCacheTokens", self.kv_cache_tokens, "tokens of KV cache", cached),
        )
        for name, limit, unit, needed in limits:
            if needed > limit:
                raise HardwareError(
                    f"{work.residents} residents after {work.resident_context_tokens:,} tokens and a prompt of "
                    f"{work.prompt_tokens:,} need {needed:,} {unit}, and {self.name} has {name} {limit:,}"
                )

    def _step_tokens(self, work: SimulatedWorkload) -> int:
        return work.residents * (1 + self.draft_tokens)


def known_hardware() -> list[str]:
    """Return the names of the hardware models that come with Paceline."""
    return sorted(each.name.removesuffix(SUFFIX) for each in _models().iterdir() if each.name.endswith(SUFFIX))


def load_hardware(name_or_path: str) -> Hardware:
    """Return a hardware model: one of ours by its name, or a YAML file's. Raises HardwareError."""
    path = Path(name_or_path)
    if path.suffix in (SUFFIX, ".yml"):
        return _read(path, name_or_path)
    if name_or_path not in known_hardware():
        raise HardwareError(
            f"no hardware model is named {name_or_path!r}: there are {', '.join(known_hardware())}, "
            f"or give a file that ends in {SUFFIX}"
        )
    return _read(_models() / f"{name_or_path}{SUFFIX}", name_or_path)


def _models() -> Traversable:
    return resources.files(__package__) / "hardware_models"


def _read(file: Path | Traversable, shown: str) -> Hardware:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        return Hardware.model_validate(document)
    except OSError as error:
        raise HardwareError(f"the hardware model {shown} can't be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise HardwareError(f"the hardware model {shown} is no YAML: {error}") from None
    except ValidationError as error:
        raise HardwareError(f"the hardware model {shown} is invalid: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """Return the first field at fault and why."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "document"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"

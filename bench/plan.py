"""What an experiment is to measure: the workload, the arms that are compared, and how often each is run."""

import random
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from paceline.bench.wire import WireModel
from paceline.engine_ext.settings import CoalescingSettings, DeclaredPacing, PacingSettings

CONTROL_SUFFIX: Final = "-control"
"""What the name of the A/A arm adds to that of the first arm, which it repeats."""

DEFAULT_PREFILL_SECONDS: Final = 12.0
"""How long the unpaced prefill of a default workload takes."""

ArmName = Annotated[str, StringConstraints(min_length=1, max_length=48, pattern=r"^[a-z0-9]([-a-z0-9=.]*[a-z0-9])?$")]
ExperimentName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ProfileKey = Annotated[str, StringConstraints(max_length=317, pattern=r"^[a-z0-9-]{1,63}/[a-z0-9][a-z0-9.-]*$")]


class MixedPhase(WireModel):
    """Residents decode; then a cold prompt arrives and is prefilled beside them.

    One block: `residents` requests start and decode until each has `steady_tokens` output tokens; a window of
    `before_seconds` is measured; the prompt of `injected_prompt_tokens` is sent and read until its last output token;
    the residents are ended. A block that takes longer than `block_timeout_seconds` fails.

    With `target_prefill_seconds` in place of `injected_prompt_tokens`, a short calibration on the idle engine finds the
    length whose unpaced prefill takes about that long, so that one plan suits any machine.
    """

    kind: Literal["MixedPhase"] = "MixedPhase"
    residents: Annotated[int, Field(ge=1, le=1_024)] = 2
    resident_prompt_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 128
    injected_prompt_tokens: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    target_prefill_seconds: Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)] | None = None
    injected_output_tokens: Annotated[int, Field(ge=1, le=4_096)] = 8
    steady_tokens: Annotated[int, Field(ge=1, le=4_096)] = 8
    before_seconds: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 3.0
    block_timeout_seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 600.0

    @model_validator(mode="after")
    def _the_prompt_has_one_size(self) -> Self:
        given = [size for size in (self.injected_prompt_tokens, self.target_prefill_seconds) if size is not None]
        if len(given) != 1:
            raise ValueError(
                "give either injectedPromptTokens, an exact length, or targetPrefillSeconds, a length that is "
                "found on the engine" + ("; not both" if given else "")
            )
        return self

    def sized(self, prompt_tokens: int) -> Self:
        """Return this workload with the length that a calibration found."""
        return self.model_copy(update={"injected_prompt_tokens": prompt_tokens, "target_prefill_seconds": None})

    @property
    def prompt_tokens(self) -> int:
        """The injected prompt's length in tokens. Raises RuntimeError while it is still to be found."""
        if self.injected_prompt_tokens is None:
            raise RuntimeError("the workload's prompt was not sized before it was used")
        return self.injected_prompt_tokens

    def describe(self) -> str:
        """Say in words what is run."""
        prompt = (
            f"a cold prompt of {self.injected_prompt_tokens:,} tokens"
            if self.injected_prompt_tokens is not None
            else f"a cold prompt that prefills in about {self.target_prefill_seconds:g} s"
        )
        return f"{self.residents} resident{'s' if self.residents > 1 else ''}, then {prompt}"


Workload = MixedPhase
"""Every workload there is, told apart by `kind`."""


class Arm(WireModel):
    """One side of the comparison: a name and the live settings that the engine runs with."""

    name: ArmName
    pacing: DeclaredPacing = PacingSettings()
    coalescing: CoalescingSettings = CoalescingSettings()


class ExperimentPlan(WireModel):
    """An experiment, as `POST /v1/experiments` takes it.

    The first arm is the baseline. `blocks` is the number of measured blocks of each arm; `control_arm` adds an A/A arm
    that repeats the baseline and must show no difference. Differences within `indifference_percent` are not claimed.
    `profile` is `namespace/name`; the control API may leave it out when it serves one profile only.
    """

    name: ExperimentName
    profile: ProfileKey | None = None
    workload: Workload = MixedPhase(target_prefill_seconds=DEFAULT_PREFILL_SECONDS)
    arms: Annotated[tuple[Arm, ...], Field(min_length=1, max_length=16)]
    blocks: Annotated[int, Field(ge=1, le=100)] = 2
    warm_up_blocks: Annotated[int, Field(ge=0, le=10)] = 1
    control_arm: bool = True
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    indifference_percent: Annotated[float, Field(ge=0, le=50, allow_inf_nan=False)] = 5.0
    confidence_percent: Annotated[float, Field(ge=50, le=99.9, allow_inf_nan=False)] = 95.0
    logprob_tolerance: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.02
    max_client_lag_milliseconds: Annotated[int, Field(ge=1, le=60_000)] = 250

    @model_validator(mode="after")
    def _arm_names_are_unique(self) -> Self:
        names = [arm.name for arm in self.all_arms]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"arms: the name {repeated[0]!r} is used more than once; give each arm a name of its own"
                + (f" ({CONTROL_SUFFIX} is kept for the A/A arm)" if repeated[0].endswith(CONTROL_SUFFIX) else "")
            )
        return self

    @model_validator(mode="after")
    def _something_is_compared(self) -> Self:
        if len(self.arms) > 1 and all(_same_settings(self.arms[0], arm) for arm in self.arms[1:]):
            raise ValueError(
                "arms: every arm has the settings of the first one, so nothing is compared; "
                "change pacing or coalescing of one, or ask for a repeat of the first with controlArm"
            )
        return self

    @property
    def baseline(self) -> Arm:
        """The arm that the others are compared with."""
        return self.arms[0]

    @property
    def control(self) -> Arm | None:
        """The A/A arm, where the plan asks for one."""
        if not self.control_arm:
            return None
        return self.arms[0].model_copy(update={"name": self.arms[0].name + CONTROL_SUFFIX})

    @property
    def all_arms(self) -> list[Arm]:
        """The arms that are run: those of the plan, then the A/A arm."""
        return [*self.arms, *([self.control] if self.control else [])]

    def schedule(self) -> list[tuple[int, Arm]]:
        """Return the measured blocks as (block, arm), in the order in which they run.

        Each pair of blocks runs all arms in an order that the seed draws, and then in its reverse, so that a drift of
        the machine that is linear in time adds the same to every arm.
        """
        draw = random.Random(self.seed)
        order: list[tuple[int, Arm]] = []
        arms = self.all_arms
        for block in range(self.blocks):
            arms = draw.sample(arms, k=len(arms)) if block % 2 == 0 else arms[::-1]
            order += [(block, arm) for arm in arms]
        return order


def _same_settings(one: Arm, other: Arm) -> bool:
    return (one.pacing, one.coalescing) == (other.pacing, other.coalescing)

"""The InferenceProfile API, version v1alpha1: the one truth for the CRD, the operator, the control API and local runs.

Rules kept here: no floats in the spec, enums instead of booleans, no enum value that YAML reads as a boolean, every
string and list bounded, hot settings (changed on a running engine) in structs apart from cold ones (a new engine).
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from paceline.engine_ext.settings import CoalescingSettings, LiveSettings, PacingSettings

GROUP: Final = "paceline.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "InferenceProfile"
PLURAL: Final = "inferenceprofiles"
SHORT_NAME: Final = "ifp"
API_VERSION: Final = f"{GROUP}/{VERSION}"

DNS_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
SOURCE_PATTERN: Final = r"^(pvc://[a-z0-9][a-z0-9.-]*/.+|hf://[\w.-]+/[\w.-]+(@[\w.-]+)?|file:///.+)$"
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"

DnsLabel = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
DnsSubdomain = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN_PATTERN)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]
LongText = Annotated[str, StringConstraints(max_length=32_768)]
Quantity = Annotated[str, StringConstraints(max_length=32, pattern=QUANTITY_PATTERN)]
PositiveInt = Annotated[int, Field(strict=True, ge=1)]


class ApiModel(BaseModel):
    """Base of the API's types: camelCase on the wire, unknown fields refused, values immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Toggle(StrEnum):
    """On or off, in words that YAML can't take for booleans."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Accelerator(StrEnum):
    """The hardware that the engine runs on."""

    CPU = "CPU"
    NVIDIA = "NVIDIA"


class SecretKeyRef(ApiModel):
    """A key of a Secret in the profile's namespace."""

    name: DnsSubdomain
    key: ShortText = "token"


class ModelSpec(ApiModel):
    """Where the weights come from and how they are served.

    `source` is `hf://org/name[@revision]`, `pvc://claim/path` or `file:///path`; a `file` source must lie below a
    folder that the operator's configuration lists, or on the machine of a local run.
    """

    source: Annotated[str, StringConstraints(min_length=8, max_length=1_024, pattern=SOURCE_PATTERN)]
    served_name: ShortText | None = None
    max_model_len: Annotated[int, Field(strict=True, ge=16, le=16_777_216)] | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    quantization: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[\w.-]+$")] | None = None
    token_secret_ref: SecretKeyRef | None = None


class ParallelismSpec(ApiModel):
    """How many devices one replica spans, by kind of parallelism."""

    tensor: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    pipeline: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    data: Annotated[int, Field(strict=True, ge=1, le=64)] = 1


class KvCacheSpec(ApiModel):
    """Size and layout of the KV cache.

    `size_gibibytes` holds on CPU, `memory_utilization_percent` on a GPU.
    """

    size_gibibytes: Annotated[int, Field(strict=True, ge=1, le=4_096)] | None = None
    memory_utilization_percent: Annotated[int, Field(strict=True, ge=10, le=99)] | None = None
    dtype: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16", "float16"] = "auto"
    block_size_tokens: Annotated[int, Field(strict=True, ge=16, le=4_096, multiple_of=16)] | None = None


class SpeculativeSpec(ApiModel):
    """Speculative decoding: the method, the number of draft tokens, and the draft model where the method has one."""

    method: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]
    draft_tokens: Annotated[int, Field(strict=True, ge=1, le=16)]
    draft_model: Annotated[str, StringConstraints(min_length=1, max_length=1_024)] | None = None


class EnvVar(ApiModel):
    """An environment variable of the engine's process."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: LongText = ""


class ResourcesSpec(ApiModel):
    """What the engine's container asks of its node, as Kubernetes quantities by resource name."""

    requests: Annotated[dict[ShortText, Quantity], Field(max_length=16)] = {}
    limits: Annotated[dict[ShortText, Quantity], Field(max_length=16)] = {}


class Toleration(ApiModel):
    """A node taint that the engine's pods tolerate."""

    key: ShortText | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(strict=True, ge=0)] | None = None


class LocalObjectRef(ApiModel):
    """The name of an object in the profile's namespace."""

    name: DnsSubdomain


class EngineSpec(ApiModel):
    """The engine's image, size, limits and place."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    image_pull_secrets: Annotated[list[LocalObjectRef], Field(max_length=8)] = []
    accelerator: Accelerator = Accelerator.NVIDIA
    replicas: Annotated[int, Field(strict=True, ge=0, le=256)] | None = None
    parallelism: ParallelismSpec = ParallelismSpec()
    max_num_batched_tokens: Annotated[int, Field(strict=True, ge=16, le=1_048_576)] | None = None
    max_num_seqs: Annotated[int, Field(strict=True, ge=1, le=65_536)] | None = None
    kv_cache: KvCacheSpec = KvCacheSpec()
    speculative: SpeculativeSpec | None = None
    prefix_caching: Toggle = Toggle.ENABLED
    extra_args: Annotated[list[LongText], Field(max_length=64)] = []
    env: Annotated[list[EnvVar], Field(max_length=64)] = []
    resources: ResourcesSpec = ResourcesSpec()
    node_selector: Annotated[
        dict[ShortText, Annotated[str, StringConstraints(max_length=63)]], Field(max_length=16)
    ] = {}
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []


class PageGateMode(StrEnum):
    """Which page sizes the D=256 paged prefill kernel serves."""

    AUTO = "Auto"
    ANY_PAGE = "AnyPage"
    DISABLED = "Disabled"


class PageGateSpec(ApiModel):
    """The page gate, a cold setting."""

    mode: PageGateMode = PageGateMode.DISABLED


class RolloutStrategy(StrEnum):
    """How a cold change replaces engines: stop first (no spare device needed), or start first."""

    RECREATE = "Recreate"
    ROLLING_UPDATE = "RollingUpdate"


class RolloutSpec(ApiModel):
    """How cold changes are rolled out, and how long a stopping engine may finish its streams."""

    strategy: RolloutStrategy = RolloutStrategy.RECREATE
    drain_seconds: Annotated[int, Field(strict=True, ge=0, le=3_600)] = 60


class InferenceProfileSpec(ApiModel):
    """A served model with its engine, and the live settings it runs with."""

    model: ModelSpec
    engine: EngineSpec = EngineSpec()
    pacing: PacingSettings = PacingSettings()
    coalescing: CoalescingSettings = CoalescingSettings()
    page_gate: PageGateSpec = PageGateSpec()
    rollout: RolloutSpec = RolloutSpec()

    def live_settings(self, *, epoch: int = 0, revision: int = 0) -> LiveSettings:
        """Return the hot part of this spec as an engine takes it."""
        return LiveSettings(epoch=epoch, revision=revision, pacing=self.pacing, coalescing=self.coalescing)


class ObjectMeta(BaseModel):
    """The part of Kubernetes' object metadata that profiles use; other fields are kept as they are."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True)

    name: DnsSubdomain
    namespace: DnsLabel = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class InferenceProfile(ApiModel):
    """An InferenceProfile object without its status, as a user writes it."""

    api_version: Literal["paceline.dev/v1alpha1"] = "paceline.dev/v1alpha1"
    kind: Literal["InferenceProfile"] = "InferenceProfile"
    metadata: ObjectMeta
    spec: InferenceProfileSpec

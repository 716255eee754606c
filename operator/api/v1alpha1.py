"""The InferenceProfile API, version v1alpha1: the one truth for the CRD, the operator, the control API and local runs.

Rules kept here: no floats in the spec, enums instead of booleans, no enum value that YAML reads as a boolean, every
string and list bounded, hot settings (changed on a running engine) in structs apart from cold ones (a new engine).
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from paceline.engine_ext.settings import CoalescingSettings, LiveSettings, PacingSettings

GROUP: Final = "paceline.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "InferenceProfile"
PLURAL: Final = "inferenceprofiles"
SHORT_NAME: Final = "ifp"
API_VERSION: Final = f"{GROUP}/{VERSION}"
MAX_SECONDS: Final = 2_147_483_647
MAX_NAME_LENGTH: Final = 63
"""Longest name of a profile, in characters: it stands in a label of everything that is made for the profile."""

DNS_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
SOURCE_PATTERN: Final = r"^(pvc://[a-z0-9][a-z0-9.-]*/.+|hf://[\w.-]+/[\w.-]+(@[\w.-]+)?|file:///.+)$"
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"

DnsLabel = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
DnsSubdomain = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN_PATTERN)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]
LongText = Annotated[str, StringConstraints(max_length=32_768)]
Argument = Annotated[str, StringConstraints(max_length=8_192)]
Quantity = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),  # YAML reads `cpu: 2` as a number
    StringConstraints(max_length=32, pattern=QUANTITY_PATTERN),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32, "pattern": QUANTITY_PATTERN}),
]

BY_NAME: Final[JsonDict] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""Mark of a list whose items have unique names, so that server-side apply merges it by name."""


class ApiModel(BaseModel):
    """Base of the API's types: camelCase on the wire, unknown fields refused, values immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


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
    """Name of the Secret."""
    key: ShortText = "token"
    """Key in the Secret's data."""


class ModelSpec(ApiModel):
    """Where the weights come from and how they are served."""

    source: Annotated[str, StringConstraints(min_length=8, max_length=1_024, pattern=SOURCE_PATTERN)]
    """hf://org/name[@revision], pvc://claim/path or file:///path. A file source must lie below a folder that the
    operator's configuration lists, or on the machine of a local run."""
    served_name: ShortText | None = None
    """Name of the model in the OpenAI API; by default the source's own."""
    max_model_len: Annotated[int, Field(strict=True, ge=16, le=16_777_216)] | None = None
    """Longest prompt plus output, in tokens; by default the model's own."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Type of the weights and activations."""
    quantization: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[\w.-]+$")] | None = None
    """vLLM's name of a quantization method; by default what the model's files say."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret with the Hugging Face token of a gated model."""


class ParallelismSpec(ApiModel):
    """How many devices one replica spans, by kind of parallelism, and on how many nodes they are."""

    tensor: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Devices that share every layer."""
    pipeline: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Stages of layers, each on its own devices."""
    data: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Engine cores behind one address, each with its own devices."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Nodes that one replica spans; more than one needs the LeaderWorkerSet API in the cluster."""

    @property
    def devices(self) -> int:
        """Devices of one replica, on all its nodes."""
        return self.tensor * self.pipeline * self.data


class KvCacheSpec(ApiModel):
    """Size and layout of the KV cache."""

    size_gibibytes: Annotated[int, Field(strict=True, ge=1, le=4_096)] | None = None
    """Size on CPU, in GiB; 1 by default."""
    memory_utilization_percent: Annotated[int, Field(strict=True, ge=10, le=99)] | None = None
    """Share of a GPU's memory that the engine may fill, weights included, in percent; by default vLLM's own."""
    dtype: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16", "float16"] = "auto"
    """Type of the cached keys and values."""
    block_size_tokens: Annotated[int, Field(strict=True, ge=16, le=4_096, multiple_of=16)] | None = None
    """Tokens of a cache block; by default vLLM's choice."""


class SpeculativeSpec(ApiModel):
    """Speculative decoding: the method, the number of draft tokens, and the draft model where the method has one."""

    method: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]
    """vLLM's name of the method: ngram, mtp, eagle3, draft_model and others."""
    draft_tokens: Annotated[int, Field(strict=True, ge=1, le=16)]
    """Draft tokens a step."""
    draft_model: Annotated[str, StringConstraints(min_length=1, max_length=1_024)] | None = None
    """Name or path of the draft model, for the methods that have one."""


class EnvVar(ApiModel):
    """An environment variable of the engine's process."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: LongText = ""
    """Value, taken literally."""


class ResourcesSpec(ApiModel):
    """What the engine's container asks of its node, as Kubernetes quantities by resource name."""

    requests: Annotated[dict[ShortText, Quantity], Field(max_length=16)] = {}
    """What the scheduler reserves."""
    limits: Annotated[dict[ShortText, Quantity], Field(max_length=16)] = {}
    """What the container may use. GPUs are added by the operator unless a GPU resource is named here."""


class Toleration(ApiModel):
    """A node taint that the engine's pods tolerate."""

    key: ShortText | None = None
    """Key of the taint; none, with operator Exists, matches every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How the value is compared."""
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; none matches every effect."""
    toleration_seconds: Annotated[int, Field(strict=True, ge=0, le=MAX_SECONDS)] | None = None
    """How long a NoExecute taint is tolerated, in seconds; for ever by default."""


class LocalObjectRef(ApiModel):
    """The name of an object in the profile's namespace."""

    name: DnsSubdomain
    """Name of the object."""


class EngineSpec(ApiModel):
    """The engine's image, size, limits and place."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    """Container image; by default the operator's own for the accelerator."""
    image_pull_secrets: Annotated[list[LocalObjectRef], Field(max_length=8, json_schema_extra=BY_NAME)] = []
    """Secrets for the image's registry."""
    accelerator: Accelerator = Accelerator.NVIDIA
    """Hardware that the engine runs on."""
    replicas: Annotated[int, Field(strict=True, ge=0, le=256)] = 1
    """Engines that serve the model; an autoscaler may set it through the scale subresource."""
    parallelism: ParallelismSpec = ParallelismSpec()
    max_num_batched_tokens: Annotated[int, Field(strict=True, ge=16, le=1_048_576)] | None = None
    """Token budget of an engine step; by default vLLM's own."""
    max_num_seqs: Annotated[int, Field(strict=True, ge=1, le=65_536)] | None = None
    """Most requests in one step; by default vLLM's own."""
    kv_cache: KvCacheSpec = KvCacheSpec()
    speculative: SpeculativeSpec | None = None
    prefix_caching: Toggle = Toggle.ENABLED
    """Whether prompts that share a beginning share its cache."""
    extra_args: Annotated[list[Argument], Field(max_length=64)] = []
    """More arguments of vLLM's server, each taken literally; those that a field sets are refused."""
    env: Annotated[list[EnvVar], Field(max_length=64, json_schema_extra=BY_NAME)] = []
    """Environment variables of the engine's process."""
    resources: ResourcesSpec = ResourcesSpec()
    node_selector: Annotated[
        dict[ShortText, Annotated[str, StringConstraints(max_length=63)]], Field(max_length=16)
    ] = {}
    """Labels of the nodes that the engine may run on."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    """Node taints that the engine tolerates."""


class PageGateMode(StrEnum):
    """Which page sizes the D=256 paged prefill kernel serves."""

    AUTO = "Auto"
    ANY_PAGE = "AnyPage"
    DISABLED = "Disabled"


class PageGateSpec(ApiModel):
    """The page gate, a cold setting."""

    mode: PageGateMode = PageGateMode.DISABLED
    """AnyPage keeps the model's own page, Auto where that was measured to be no slower, Disabled leaves vLLM's."""


class RolloutStrategy(StrEnum):
    """How a cold change replaces engines: stop first (no spare device needed), or start first."""

    RECREATE = "Recreate"
    ROLLING_UPDATE = "RollingUpdate"


class RolloutSpec(ApiModel):
    """How cold changes are rolled out, and how long a stopping engine may finish its streams."""

    strategy: RolloutStrategy = RolloutStrategy.RECREATE
    """Recreate stops every engine first and needs no spare device; RollingUpdate replaces them one after another."""
    max_surge: Annotated[int, Field(strict=True, ge=0, le=256)] = 1
    """Engines that a RollingUpdate may start above the replicas; each needs room on a node."""
    max_unavailable: Annotated[int, Field(strict=True, ge=0, le=256)] = 0
    """Engines that a RollingUpdate may stop before their successors are ready."""
    drain_seconds: Annotated[int, Field(strict=True, ge=0, le=3_600)] = 60
    """How long a stopping engine may finish its streams, in seconds."""
    start_seconds: Annotated[int, Field(strict=True, ge=60, le=86_400)] = 7_200
    """How long an engine may take to load its model before it is started anew, in seconds."""


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

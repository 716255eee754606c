"""What of vLLM this package leans on, and in which versions that was tested.

An engine is recognised by its source, not by the name of its distribution: forks and CPU builds are named otherwise.
Where a hook's source is not one that was tested, the feature stays off and says so; nothing is guessed.
"""

import hashlib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final

DIGEST_LENGTH: Final = 16
ABSENT: Final = "absent"
"""Stands for the digest of a hook that a version does without."""


@dataclass(frozen=True)
class Hook:
    """A piece of vLLM that a feature overrides, wraps or reads.

    `target` is `module:qualified.name`; `tested` maps digests of its source to the vLLM versions that have it, and
    ABSENT to versions that lack it and need it for nothing.
    """

    feature: str
    target: str
    why: str
    tested: Mapping[str, tuple[str, ...]]


HOOKS: Final = (
    Hook(
        "pacing",
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        "held requests compute nothing because of how it counts new tokens and obeys the pause",
        {"da4f2cf2fc39c39e": ("0.32.0",), "657b759ca1c6e53b": ("0.22.1",), "fa34c8a13c0a8936": ("0.33.0",)},
    ),
    Hook(
        "pacing",
        "vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule",
        "keeps is_prefill_chunk, by which prefills are told from decoders",
        {"2b527eb8070d3cce": ("0.32.0", "0.33.0"), "15a2a325c9e583a6": ("0.22.1",)},
    ),
    Hook(
        "pacing",
        "vllm.v1.core.sched.scheduler:Scheduler._reserve_prefill_lookahead",
        "overridden to keep prefill chunks off the size of a verify batch",
        {"c214e49d7610a63a": ("0.32.0", "0.33.0"), ABSENT: ("0.22.1",)},
    ),
    Hook(
        "pacing",
        "vllm.v1.core.sched.scheduler:Scheduler._preempt_request",
        "preempted requests are exempt from holding by what it leaves in them",
        {"4113f5de8a84ec25": ("0.32.0",), "2a89cd7178fe260c": ("0.22.1",), "8d67cc4e85688724": ("0.33.0",)},
    ),
    Hook(
        "pacing",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler",
        "base class; its placeholders tell output in flight",
        {"157edcf67cd38116": ("0.32.0",), "dbf3aac00cd036ca": ("0.22.1",), "991e40506b5d430d": ("0.33.0",)},
    ),
    Hook(
        "pacing",
        "vllm.v1.core.sched.interface:PauseState",
        "PAUSED_NEW holds waiting requests for a step",
        {"71d3684a6d04c4c4": ("0.32.0", "0.33.0"), "031a047bae8c0b08": ("0.22.1",)},
    ),
    Hook(
        "admin",
        "vllm.v1.engine.core:EngineCoreProc._handle_client_request",
        "runs utility calls by name between two steps",
        {"b2026637e79970b6": ("0.32.0",), "617c2563701eaa88": ("0.22.1",), "3106e8610d8b4d46": ("0.33.0",)},
    ),
    Hook(
        "admin",
        "vllm.v1.engine.core_client:AsyncMPClient._call_utility_async",
        "asks one engine core, so that the others' answers don't hide the one that is late",
        {"72f6f12f61197b0f": ("0.32.0", "0.33.0"), "e633c6c549817335": ("0.22.1",)},
    ),
    Hook(
        "registration",
        "vllm.entrypoints.serve:register_vllm_serve_api_routers",
        "wrapped where vLLM has no endpoint plugins: it sees the application before it starts",
        {"cbb05836083a199f": ("0.22.1",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.sched.scheduler:Scheduler._mamba_block_aligned_split",
        "overridden: a planned span is not split",
        {"b2a08c774ae495bf": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.sched.scheduler:Scheduler._preempt_request",
        "wrapped: blocks that were allocated in the step are forgotten, which it leaves published",
        {"4113f5de8a84ec25": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        "counts, allocates and publishes blocks in this order, once a span",
        {"8c60d937fd9eb0c8": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager.cache_blocks",
        "publishes the states at the boundaries it is given",
        {"973ea9fec0745c95": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.single_type_kv_cache_manager:MambaManager",
        "subclassed: a planned span gets a block for each state it exports",
        {"e645e8f0cace2d70": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.block_pool:BlockPool",
        "subclassed: spare states are the first to be evicted",
        {"955b5845abc85657": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue",
        "read for blocks that hold nothing",
        {"9849f2e9a6e41fba": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.core.sched.output:SchedulerOutput",
        "carries the plan to the workers",
        {"97fb4463a2eda132": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.worker.gpu_worker:Worker.execute_model",
        "wrapped: every state of a plan must be written when it ends",
        {"782126ba48e7e116": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.worker.mamba_utils:preprocess_mamba",
        "copies a span's first state to its last column before the pass",
        {"2eed1bcbe40ca1ef": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder.build",
        "wrapped: finds the planned row and the blocks of its states",
        {"021e33d16571dabe": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention:_cpu_gdn_attention_nonspec",
        "wrapped: exports states on CPU",
        {"f9692f0776d8adfa": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder.update_block_table",
        "wrapped: layer groups that share metadata export to blocks of their own",
        {"481006e8bc478f3e": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:QwenGatedDeltaNetAttention._forward_core",
        "wrapped: exports states on GPU",
        {"0563f7e3feac12d3": ("0.32.0",)},
    ),
    Hook(
        "coalescing",
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn:ChunkGatedDeltaRule",
        "wrapped: the rule is cut on GPU",
        {"695bd304a11b77a4": ("0.32.0",)},
    ),
    Hook(
        "page_gate",
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl",
        "subclassed: fills the cache in the layout that the kernel reads, and serves what the kernel refuses",
        {"fa7deca5db2840c0": ("0.32.0",)},
    ),
    Hook(
        "page_gate",
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionMetadataBuilder",
        "its metadata describe the step's requests to the kernel",
        {"7594b0d1e0491695": ("0.32.0",)},
    ),
    Hook(
        "page_gate",
        "vllm.v1.attention.backends.cpu_attn:_get_attn_isa",
        "names the cache's layout",
        {"dad1605de0f81413": ("0.32.0",)},
    ),
    Hook(
        "page_gate",
        "vllm.platforms.cpu:CpuPlatform.update_block_size_for_backend",
        "wrapped: a hybrid model's page starts from 16 tokens",
        {"25a2dccf4c72b511": ("0.32.0",)},
    ),
    Hook(
        "page_gate",
        "vllm.platforms.interface:Platform._align_hybrid_block_size",
        "rounds the page up to a multiple of what it started from",
        {"a728408b016f5b23": ("0.32.0",)},
    ),
)
"""Everything that this package replaces or relies on beyond vLLM's published interfaces."""


def digest(source: str) -> str:
    """Return the fingerprint of a piece of source text."""
    return hashlib.sha256(source.encode()).hexdigest()[:DIGEST_LENGTH]


def resolve(target: str) -> Any:
    """Return the object that `module:qualified.name` names. Raises ImportError or AttributeError."""
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def check(hook: Hook) -> str | None:
    """Return what is wrong with a hook on the engine installed here, None when its source was tested."""
    try:
        source = inspect.getsource(resolve(hook.target))
    except (ImportError, AttributeError, OSError) as error:
        return None if ABSENT in hook.tested else f"this engine has no {hook.target} ({error})"
    if digest(source) in hook.tested:
        return None
    versions = ", ".join(sorted({version for versions in hook.tested.values() for version in versions}))
    return f"{hook.target} of this engine differs from those tested (vLLM {versions})"


def _problems(feature: str) -> Iterator[str]:
    for hook in HOOKS:
        if hook.feature == feature and (problem := check(hook)) is not None:
            yield problem


@cache
def problems(feature: str) -> tuple[str, ...]:
    """Return why a feature can't run on the engine installed here; empty when it can.

    The first fault is enough: each further one would cost every process of the engine the import of a module.
    """
    return tuple(islice(_problems(feature), 1))

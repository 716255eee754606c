"""Builds vLLM's real scheduler without an engine, a model or a device, for tests, benchmarks and the simulator.

The scheduler needs a model's shape and a cache's size, never weights. Importing this module imports vLLM.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

MAX_MODEL_TOKENS = 1_048_576


@dataclass(frozen=True)
class Shape:
    """What the scheduler sees of an engine; sizes in tokens, but for `blocks` of the KV cache."""

    budget: int = 2_048
    max_seqs: int = 256
    blocks: int = 100_000
    block_size: int = 16
    asynchronous: bool = False
    pipeline: int = 1
    prefix_caching: bool = False
    policy: str = "fcfs"
    drafts: int = 0
    long_prefill_tokens: int = 0

    @property
    def steps_in_flight(self) -> int:
        """How many steps the engine has in flight before it waits for the oldest."""
        return 2 if self.asynchronous or self.pipeline > 1 else 1


def model_from(document: Mapping[str, Any], dtype: Literal["float16", "bfloat16"]) -> ModelConfig:
    """Return the configuration of a model by its config.json, from a temporary folder that holds nothing else."""
    folder = Path(mkdtemp(prefix="paceline-offline-"))
    (folder / "config.json").write_text(json.dumps(document))
    return ModelConfig(model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype=dtype, seed=0)


@cache
def small_llama() -> ModelConfig:
    """Return the configuration of a small Llama."""
    return model_from(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_hidden_layers": 2,
            "vocab_size": 512,
            "max_position_embeddings": MAX_MODEL_TOKENS,
            "torch_dtype": "float16",
        },
        dtype="float16",
    )


@cache
def vllm_config(shape: Shape, model_config: Callable[[], ModelConfig] = small_llama) -> VllmConfig:
    """Return the engine configuration of a shape."""
    model = model_config()
    parallel = ParallelConfig(pipeline_parallel_size=shape.pipeline, distributed_executor_backend="mp")
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=shape.block_size, enable_prefix_caching=shape.prefix_caching),
        scheduler_config=SchedulerConfig(
            max_num_seqs=shape.max_seqs,
            max_num_batched_tokens=shape.budget,
            max_model_len=model.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy=shape.policy,
            long_prefill_token_threshold=shape.long_prefill_tokens,
        ),
        parallel_config=parallel,
        speculative_config=_drafting(shape.drafts, model, parallel) if shape.drafts else None,
    )
    config.cache_config.num_gpu_blocks = shape.blocks
    # The CPU platform turns asynchronous scheduling off; the scheduler's logic does not depend on the device.
    config.scheduler_config.async_scheduling = shape.asynchronous
    return config


def _drafting(count: int, model: ModelConfig, parallel: ParallelConfig) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=count,
        prompt_lookup_max=3,
        target_model_config=model,
        target_parallel_config=parallel,
    )


def build_scheduler(scheduler_class: type, shape: Shape) -> Any:
    """Build a scheduler of vLLM's interface, as its engine core does."""
    config = vllm_config(shape)
    attention = FullAttentionSpec(shape.block_size, num_kv_heads=1, head_size=1, dtype=config.model_config.dtype)
    cache_config = KVCacheConfig(shape.blocks, [], [KVCacheGroupSpec(["layer"], attention)])
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=cache_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=shape.block_size,
        hash_block_size=shape.block_size,
        log_stats=True,
    )

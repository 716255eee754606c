"""Drives vLLM's real scheduler and cache managers over a hybrid model, with a worker that only keeps the books.

The worker holds no tensors: for each cache block it remembers of which tokens it holds the state. It mirrors vLLM's
own one (block tables that only grow, the state of the last step read from the column before), so a state that was
never written, or belongs to other tokens, is noticed the moment it is read.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from paceline.engine_ext.coalescing import patches
from paceline.engine_ext.coalescing.scheduler import PLAN_ATTRIBUTE
from paceline.engine_ext.scheduler import PacedScheduler
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk

patches.install()
init_none_hash(sha256)

OUTPUT_TOKEN = 7
STATE_GROUPS = 2
ON = CoalescingSettings(final_chunk=FinalChunk.ENABLED)
OFF = CoalescingSettings()
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "head_dim": 256,
    "hidden_size": 256,
    "intermediate_size": 512,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "vocab_size": 512,
}


@cache
def model_config() -> ModelConfig:
    folder = Path(mkdtemp(prefix="paceline-hybrid-"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return ModelConfig(model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype="bfloat16", seed=0)


@dataclass(frozen=True)
class Options:
    """What a test may vary of the engine."""

    block: int = 64
    budget: int = 1024
    blocks: int = 4000
    max_seqs: int = 16
    asynchronous: bool = False
    policy: str = "fcfs"
    drafts: int = 0
    retention: int | None = 0


@cache
def vllm_config(options: Options) -> VllmConfig:
    model = model_config()
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=options.block, cache_dtype="auto", enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=options.max_seqs,
            max_num_batched_tokens=options.budget,
            max_model_len=model.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            policy=options.policy,
        ),
        parallel_config=ParallelConfig(),
        speculative_config=_drafting(options.drafts, model) if options.drafts else None,
    )
    config.cache_config.block_size = options.block
    config.cache_config.num_gpu_blocks = options.blocks
    config.cache_config.mamba_cache_mode = "align"
    # The CPU platform turns asynchronous scheduling off; the scheduler's logic does not depend on the device.
    config.scheduler_config.async_scheduling = options.asynchronous
    return config


def _drafting(count: int, model: ModelConfig) -> SpeculativeConfig:
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=count,
        prompt_lookup_max=3,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )


def cache_config(options: Options) -> KVCacheConfig:
    attention = FullAttentionSpec(block_size=options.block, num_kv_heads=1, head_size=256, dtype=torch.bfloat16)
    state = MambaSpec(
        block_size=options.block,
        shapes=((3, 512), (2, 128, 128)),
        dtypes=(torch.bfloat16, torch.float32),
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
        mamba_cache_mode="align",
        num_speculative_blocks=options.drafts,
    )
    groups = [KVCacheGroupSpec(["attention"], attention)]
    groups += [KVCacheGroupSpec([f"state{index}"], state) for index in range(STATE_GROUPS)]
    return KVCacheConfig(
        num_blocks=options.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=options.retention,
    )


@dataclass
class BookkeepingWorker:
    """Block tables by request and group, the column of each request's running state, and what every block holds."""

    block: int
    tables: dict[str, list[list[int]]] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    holds: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    def execute(self, output: Any, tokens: dict[str, tuple[int, ...]]) -> None:
        """Run a step; `tokens` are each request's tokens. Raises AssertionError when it reads a wrong state."""
        for request_id in output.finished_req_ids:
            self.tables.pop(request_id, None)
            self.columns.pop(request_id, None)
        starts = {}
        for new in output.scheduled_new_reqs:
            self._replace_table(new.req_id, new.block_ids)
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            starts[request_id] = cached.num_computed_tokens[index]
            new_ids = cached.new_block_ids[index]
            if request_id in cached.resumed_req_ids:
                self._replace_table(request_id, new_ids)
            elif new_ids is not None:
                for table, ids in zip(self.tables[request_id], new_ids, strict=True):
                    table.extend(ids)
        plan = getattr(output, PLAN_ATTRIBUTE, None)
        for request_id, count in output.num_scheduled_tokens.items():
            targets = plan.targets if plan is not None and plan.request_id == request_id else ()
            self._compute(request_id, tokens[request_id], starts[request_id], count, targets)

    def _replace_table(self, request_id: str, block_ids: Any) -> None:
        self.tables[request_id] = [list(ids) for ids in block_ids]
        self.columns.pop(request_id, None)

    def _compute(self, request_id: str, tokens: tuple[int, ...], start: int, count: int, targets: Any) -> None:
        end = start + count
        source = self.columns.get(request_id, (start - 1) // self.block)
        final = (end - 1) // self.block
        for group, table in enumerate(self.tables[request_id][1:]):
            if start:
                held = self.holds.get((group, table[source]))
                assert held == tokens[:start], f"{request_id} reads a wrong state at {start}, group {group}"
            for position in (*targets, end):
                column = final if position == end else position // self.block - 1
                assert table[column], f"{request_id} has no block for the state at {position}"
                self.holds[group, table[column]] = tokens[:position]
        self.columns[request_id] = final


@dataclass(frozen=True)
class Span:
    """What a step computed for a request: tokens [start, end)."""

    request_id: str
    start: int
    end: int


class Engine:
    """A scheduler, its bookkeeping worker, and a log of every span. With an asynchronous engine, a step ahead."""

    def __init__(
        self,
        coalescing: CoalescingSettings | None = ON,
        options: Options | None = None,
        scheduler_class: type[Scheduler] = PacedScheduler,
    ) -> None:
        self.options = options or Options()
        self.scheduler: Any = scheduler_class(
            vllm_config=vllm_config(self.options),
            kv_cache_config=cache_config(self.options),
            structured_output_manager=StructuredOutputManager(vllm_config(self.options)),
            block_size=self.options.block,
            log_stats=False,
        )
        if coalescing is not None:
            self.set(coalescing=coalescing)
        self.worker = BookkeepingWorker(self.options.block)
        self.spans: list[list[Span]] = []
        self.hits: dict[str, int] = {}
        self.in_flight: deque[Any] = deque()

    def set(self, **knobs: Any) -> None:
        """Change live settings, as the admin route does between two steps."""
        live = self.scheduler.live
        self.scheduler.apply_settings(live.model_copy(update={"revision": live.revision + 1, **knobs}))

    def add(self, request_id: str, tokens: Iterable[int], max_tokens: int = 1, priority: int = 0) -> Request:
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            pooling_params=None,
            block_hasher=get_request_block_hasher(self.options.block, sha256),
            priority=priority,
        )
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)

    def step(self) -> list[Span]:
        """Schedule and run one step; return its spans."""
        output = self.scheduler.schedule()
        requests = self.scheduler.requests
        counts = output.num_scheduled_tokens
        spans = [
            Span(name, requests[name].num_computed_tokens - count, requests[name].num_computed_tokens)
            for name, count in counts.items()
        ]
        for new in output.scheduled_new_reqs:
            self.hits[new.req_id] = new.num_computed_tokens
        tokens = {name: (*requests[name].all_token_ids, *[OUTPUT_TOKEN] * 4) for name in counts}
        self.worker.execute(output, tokens)
        self.in_flight.append(output)
        while self.in_flight and (not counts or len(self.in_flight) > self.options.asynchronous):
            self.receive()
        self.spans.append(spans)
        return spans

    def receive(self) -> None:
        """Process the oldest output in flight: one token for each request whose tokens were all computed."""
        output = self.in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        sampled = [[OUTPUT_TOKEN] if self._samples(output, name) else [] for name in names]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )

    def _samples(self, output: Any, name: str) -> bool:
        start = next((new.num_computed_tokens for new in output.scheduled_new_reqs if new.req_id == name), None)
        if start is None:
            cached = output.scheduled_cached_reqs
            start = cached.num_computed_tokens[cached.req_ids.index(name)]
        request = self.scheduler.requests.get(name)
        return request is not None and start + output.num_scheduled_tokens[name] >= request.num_prompt_tokens

    def run(self, limit: int = 2000) -> None:
        """Step until every request has finished."""
        for _ in range(limit):
            if not self.scheduler.requests and not self.in_flight:
                return
            self.step()
        raise AssertionError(f"requests unfinished after {limit} steps: {list(self.scheduler.requests)}")

    def lengths(self, request_id: str) -> list[int]:
        """Return the tokens of each pass of a request."""
        return [s.end - s.start for spans in self.spans for s in spans if s.request_id == request_id]

    @property
    def report(self) -> dict[str, Any]:
        """What coalescing did."""
        return self.scheduler.coalescing_counters.to_wire()

    @property
    def pool(self) -> Any:
        """The pool of cache blocks that all groups share."""
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def leaked_blocks(self) -> int:
        """Blocks that are neither free nor the null block."""
        return self.pool.num_gpu_blocks - 1 - self.pool.get_num_free_blocks()


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return a prompt of bytes that shares no block with one of another seed."""
    return [(seed * 131 + position * 7 + position // 251) % 256 for position in range(length)]

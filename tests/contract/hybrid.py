"""Drives vLLM's real scheduler and cache managers over a hybrid model, with a worker that only keeps the books."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

import torch
from bookkeeping import BookkeepingWorker
from vllm.config import ModelConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from paceline.engine_ext import offline
from paceline.engine_ext.coalescing import patches
from paceline.engine_ext.coalescing.scheduler import PLAN_ATTRIBUTE
from paceline.engine_ext.offline import Shape, model_from
from paceline.engine_ext.scheduler import PacedScheduler
from paceline.engine_ext.settings import CoalescingSettings, FinalChunk

patches.install()
init_none_hash(sha256)

OUTPUT_TOKEN, WRONG_DRAFT = 7, 99
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
def hybrid_model() -> ModelConfig:
    return model_from(CONFIG, dtype="bfloat16")


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


def vllm_config(options: Options) -> VllmConfig:
    shape = Shape(  # without the blocks, which the scheduler reads from the cache's own configuration
        budget=options.budget,
        max_seqs=options.max_seqs,
        block_size=options.block,
        asynchronous=options.asynchronous,
        prefix_caching=True,
        policy=options.policy,
        drafts=options.drafts,
    )
    config = offline.vllm_config(shape, hybrid_model)
    config.cache_config.block_size = options.block  # vLLM has raised it for the state of a real cache
    config.cache_config.mamba_cache_mode = "align"
    return config


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


@dataclass(frozen=True)
class Span:
    """What a step computed for a request: tokens [start, end)."""

    request_id: str
    start: int
    end: int


class Engine:
    """A scheduler, its bookkeeping worker, and every step's spans and plan; a step ahead where asynchronous."""

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
        self.plans: list[Any] = []
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
        if not self.options.drafts:  # vLLM's worker has states for every draft, which these books have not
            self.worker.execute(output, tokens)
        # A chunk that ends before the last known token, of a prompt or of a preempted request, samples nothing.
        sampling = {name for name in counts if requests[name].num_computed_tokens >= requests[name].num_tokens}
        self.in_flight.append((output, sampling))
        while self.in_flight and (not counts or len(self.in_flight) > self.options.asynchronous):
            self.receive()
        self.spans.append(spans)
        self.plans.append(getattr(output, PLAN_ATTRIBUTE, None))
        return spans

    def receive(self) -> None:
        """Process the oldest output in flight: one token for each request whose tokens were all computed."""
        output, sampling = self.in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        sampled = [self._sampled(output, name) if name in sampling else [] for name in names]
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
        if self.options.drafts:
            decoding = [name for name, tokens in zip(names, sampled, strict=True) if tokens]
            drafts = [[OUTPUT_TOKEN] * (self.options.drafts - 1) + [WRONG_DRAFT] for _ in decoding]
            self.scheduler.update_draft_token_ids(DraftTokenIds(decoding, drafts))

    @staticmethod
    def _sampled(output: Any, name: str) -> list[int]:
        drafts = output.scheduled_spec_decode_tokens.get(name, ())
        accepted = takewhile(lambda token: token == OUTPUT_TOKEN, drafts)
        return [*accepted, OUTPUT_TOKEN]

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

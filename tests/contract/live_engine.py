"""A real vLLM engine in this process, on the tiny hybrid model: its scheduler, its tensors and its outputs at hand."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request

from paceline.engine_ext.settings import CoalescingSettings

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 256
BUDGET = 2048
States = dict[str, list[torch.Tensor]]


@dataclass(frozen=True)
class Answer:
    """What a request returned: tokens, the logprob of each, the prompt tokens found in the cache, its passes."""

    tokens: list[int]
    logprobs: list[float]
    hit: int
    passes: list[int]


class LiveEngine:
    """An engine with blocks of 256 tokens and a budget of 2048: prompts of a few thousand have several spans."""

    def __init__(self) -> None:
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
        model = subprocess.run(["bash", "scripts/model.sh"], cwd=ROOT, check=True, capture_output=True, text=True)
        self.llm = LLM(
            model=model.stdout.strip(),
            scheduler_cls="paceline.engine_ext.scheduler.PacedScheduler",
            enforce_eager=True,
            block_size=BLOCK,
            max_num_batched_tokens=BUDGET,
            max_model_len=8192,
            max_num_seqs=8,
        )
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler: Any = core.scheduler
        runner = core.model_executor.driver_worker.worker.model_runner
        self.layers = runner.compilation_config.static_forward_context

    def set(self, coalescing: CoalescingSettings) -> None:
        """Change the live settings, as the admin route does between two steps."""
        live = self.scheduler.live
        self.scheduler.apply_settings(live.model_copy(update={"revision": live.revision + 1, "coalescing": coalescing}))

    def forget(self) -> None:
        """Empty the prefix cache."""
        assert self.llm.reset_prefix_cache()

    def ask(self, *prompts: list[int], max_tokens: int = 8) -> list[Answer]:
        """Run prompts together, greedily."""
        records = self.scheduler.step_log.records
        last = records[-1].step if records else 0
        outputs = self.llm.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=1, ignore_eos=True),
            use_tqdm=False,
        )
        steps = self.scheduler.step_log.page(last, 1000)
        return [_answer(output, steps) for output in outputs]

    def slots(self, prompt: list[int], position: int) -> dict[str, int]:
        """Return the cache block that holds the state at a position of a prompt, by layer."""
        algorithm = self.llm.llm_engine.vllm_config.cache_config.prefix_caching_hash_algo
        hasher = get_request_block_hasher(BLOCK, get_hash_fn_by_name(algorithm))
        request = Request("lookup", prompt, SamplingParams(max_tokens=1), None, block_hasher=hasher)
        block_hash = request.block_hashes[position // BLOCK - 1]
        manager = self.scheduler.kv_cache_manager
        found = {}
        for group, spec in enumerate(self.scheduler.kv_cache_config.kv_cache_groups):
            if "linear_attn" in spec.layer_names[0]:
                blocks = manager.block_pool.get_cached_block(block_hash, [group])
                assert blocks is not None, f"no state at {position}"
                found |= dict.fromkeys(spec.layer_names, blocks[0].block_id)
        return found

    def states(self, prompt: list[int], position: int) -> States:
        """Return copies of the convolution's and the recurrence's state at a position, by layer."""
        slots = self.slots(prompt, position)
        return {layer: [t[slot].clone() for t in self.layers[layer].kv_cache] for layer, slot in slots.items()}


def _answer(output: Any, steps: list[Any]) -> Answer:
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    chunks = [
        count for step in steps for name, count in step.scheduled.items() if name.startswith(f"{output.request_id}-")
    ]
    return Answer(
        tokens=tokens,
        logprobs=[found[token].logprob for token, found in zip(tokens, completion.logprobs, strict=True)],
        hit=output.num_cached_tokens,
        passes=[count for count in chunks if count > 1],
    )

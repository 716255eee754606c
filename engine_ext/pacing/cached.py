"""What a waiting prompt would find in the prefix cache, and which blocks it needs. vLLM looks when it admits it."""

from dataclasses import dataclass
from typing import Any, Final

from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import MambaSpec

FRESH_SECONDS: Final = 1.0
"""How long a look into the cache is good for: a look walks over all blocks of a prompt, and every step asks."""
LOOKS_PER_STEP: Final = 2
"""How many looks a step may take, so that many waiting prompts don't delay the decoders; the others count as before."""
STATE_BLOCKS: Final = 2
"""Blocks of recurrent state that a prefill holds at most: the one it starts from and the one it writes."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Tokens of a waiting prompt that are cached, the ids of their blocks that nobody holds, and when that was so."""

    tokens: int
    idle: frozenset[int]
    looked_at: float


NO_HIT: Final = Hit(0, frozenset(), float("inf"))
STALE: Final = Hit(0, frozenset(), float("-inf"))


def hit(scheduler: Any, request: Any) -> Hit:
    """Return what a prompt would find in the cache if it were admitted now; nothing for one that has been."""
    manager = scheduler.kv_cache_manager
    if request.num_computed_tokens or not manager.enable_caching or request.skip_reading_prefix_cache:
        return NO_HIT
    now = scheduler.clock()
    known: Hit = getattr(request, "paceline_hit", STALE)
    if now - known.looked_at < FRESH_SECONDS or scheduler.looks_left <= 0:
        return known
    scheduler.looks_left -= 1
    groups, tokens, *_ = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
    idle = (block.block_id for blocks in groups for block in blocks if block.ref_cnt == 0 and not block.is_null)
    request.paceline_hit = Hit(tokens, frozenset(idle), now)
    return request.paceline_hit


def context(scheduler: Any, request: Any) -> int:
    """Return how many tokens of a prompt are computed already, or would be found in the cache."""
    return int(request.num_computed_tokens or hit(scheduler, request).tokens)


def left(scheduler: Any, request: Any) -> int:
    """Return how many tokens of a prompt are still to compute."""
    return max(0, request.num_tokens - context(scheduler, request))


def blocks_left(scheduler: Any, request: Any) -> int:
    """Return how many new blocks a prompt takes until it is computed, at most."""
    tokens = left(scheduler, request)
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    return sum(_blocks(manager, tokens) for manager in managers)


def _blocks(manager: Any, tokens: int) -> int:
    spec = manager.kv_cache_spec
    if isinstance(spec, MambaSpec) and spec.mamba_cache_mode != "all":
        return int(STATE_BLOCKS + spec.num_speculative_blocks)
    blocks = cdiv(tokens, manager.block_size)
    # Windowed layers take no more; vLLM 0.22.1 has the name with an underscore.
    most = getattr(manager, "max_admission_blocks_per_request", None)
    most = most or getattr(manager, "_max_admission_blocks_per_request", None)
    return min(blocks, most) if most else blocks

"""A block pool that keeps extra states only in memory that stock vLLM would have left unused.

A spare block is a cached state that stock would not have kept. Whenever an allocation would evict a cached block, a
spare one that nobody holds goes instead, so that exporting more states never costs a prefix that stock would hit.
"""

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.block_pool import BlockPool


class SparePool(BlockPool):
    """vLLM's block pool with spare blocks. `spares` maps block ids to blocks, the first to go first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spares: dict[int, Any] = {}

    def lend(self, blocks: Iterable[Any]) -> None:
        """Make cached blocks spare; the first of them is the first to go."""
        self.spares.update((block.block_id, block) for block in blocks if block.block_hash is not None)

    def keep(self, blocks: Iterable[Any]) -> None:
        """Make blocks ordinary cached ones again."""
        for block in blocks:
            self.spares.pop(block.block_id, None)

    def clean_blocks(self, limit: int) -> int:
        """Return how many blocks, up to `limit`, can be had without evicting a cached block that is not spare."""
        idle_spares = sum(block.ref_cnt == 0 for block in self.spares.values())
        return min(limit, self._unhashed(limit) + idle_spares)

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        """Take blocks from the pool, spare ones before any other cached block."""
        if self.spares:
            self._give_up(num_blocks - self._unhashed(num_blocks))
        return super().get_new_blocks(num_blocks)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block, spare ones too."""
        done = super().reset_prefix_cache()
        if done:
            self.spares.clear()
        return done

    def _remove_cached_block_hashes(self, block: Any) -> list[Any]:
        self.spares.pop(block.block_id, None)
        return super()._remove_cached_block_hashes(block)

    def _unhashed(self, limit: int) -> int:
        """Count the blocks at the head of the free queue that hold nothing, up to `limit`."""
        queue = self.free_block_queue
        block, count = queue.fake_free_list_head.next_free_block, 0
        while count < limit and block is not queue.fake_free_list_tail and block.block_hash is None:
            block, count = block.next_free_block, count + 1
        return count

    def _give_up(self, count: int) -> None:
        """Evict up to `count` spare blocks that nobody holds, and put them first in the free queue."""
        if count <= 0:
            return
        idle = [block for block in self.spares.values() if block.ref_cnt == 0][:count]
        for block in idle:
            self._maybe_evict_cached_block(block)
            self.free_block_queue.remove(block)
        self.free_block_queue.prepend_n(idle)

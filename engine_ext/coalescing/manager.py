"""The cache manager of recurrent state that gives a planned span a block for each state it exports."""

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import MambaManager

from paceline.engine_ext.coalescing.plan import SpanPlan


class CoalescingMambaManager(MambaManager):
    """vLLM's manager of recurrent state; a plan lives from `expect` to the end of the step.

    A span without a plan takes vLLM's own path, unchanged.
    """

    __wrapped__ = MambaManager  # `inspect` finds the source that `compat` checks, also once this class took its name

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plan: SpanPlan | None = None
        self._kept: dict[int, Any] = {}

    def expect(self, plan: SpanPlan) -> None:
        """Prepare for the allocation of a planned span."""
        self._plan, self._kept = plan, {}

    def withdraw(self) -> dict[int, Any]:
        """Forget the plan; return the blocks of the states it published by position, none when it was never used."""
        kept, self._plan, self._kept = self._kept, None, {}
        return kept

    def let_go(self, request_id: str, positions: Iterable[int]) -> None:
        """Give the blocks of a request's states back to the pool, where they stay cached.

        A step that is scheduled later runs later, so whoever takes such a block writes it after the state was written.
        """
        blocks = self.req_to_blocks[request_id]
        columns = [position // self.block_size - 1 for position in positions]
        self.block_pool.free_blocks([blocks[column] for column in columns])
        for column in columns:
            blocks[column] = self._null_block

    def passes_on(self, plan: SpanPlan) -> bool:
        """Tell whether the state that the pass starts from leaves its block to the first state that it exports.

        It does where no prompt can hit it: the worker copies it to the final column before the pass.
        """
        source, blocks = plan.columns(self.block_size).source, self.req_to_blocks.get(plan.request_id, ())
        return bool(plan.targets) and 0 <= source < len(blocks) and self.block_pool.is_block_writable(blocks[source])

    def _planned(self, request_id: str, end: int) -> SpanPlan | None:
        """Return the plan of a request's span that really ends where the plan does."""
        plan = self._plan
        return plan if plan is not None and (plan.request_id, plan.end) == (request_id, end) else None

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Any],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        """Count the blocks that an allocation takes, with those of a plan's targets."""
        count = super().get_num_blocks_to_allocate(
            request_id,
            num_tokens,
            new_computed_blocks,
            total_computed_tokens,
            num_local_computed_tokens,
            num_tokens_main_model,
            apply_admission_cap,
            prefill_end,
        )
        plan = None if apply_admission_cap else self._planned(request_id, num_tokens_main_model)
        return count if plan is None else count + len(plan.targets) - self.passes_on(plan)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[Any]:
        """Append a request's new columns; a plan's targets get blocks where stock leaves empty columns."""
        plan = self._planned(request_id, num_tokens_main_model)
        blocks = self.req_to_blocks[request_id]
        known = len(blocks)
        new_blocks = super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        if plan is None:
            return new_blocks
        columns = plan.columns(self.block_size)
        if len(blocks) != columns.final + 1 or any(c < known or not blocks[c].is_null for c in columns.targets):
            raise RuntimeError(f"the block table of {request_id} does not fit its plan {plan}: {known} columns known")
        states = []
        if self.passes_on(plan):
            states.append(blocks[columns.source])
            blocks[columns.source] = self._null_block
        states += self.block_pool.get_new_blocks(len(columns.targets) - len(states))
        for column, block in zip(columns.targets, states, strict=True):
            blocks[column] = block
        self._kept = dict(zip(plan.targets, states, strict=True))
        if plan.keeps_end:
            self._kept[plan.end] = blocks[columns.final]
        return blocks[known:]

    def cache_blocks(
        self,
        request: Any,
        num_tokens: int,
        retention_interval: int | None = None,
        *,
        replay_boundaries: Sequence[int],
    ) -> None:
        """Publish a request's states, with those of its plan once they have blocks.

        `num_tokens` may be less than the plan's end: vLLM publishes whole blocks.
        """
        planned = self._plan is not None and self._plan.request_id == request.request_id
        boundaries = [*replay_boundaries, *(self._kept if planned else ())]
        super().cache_blocks(request, num_tokens, retention_interval, replay_boundaries=boundaries)

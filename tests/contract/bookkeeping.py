"""A worker without tensors: for each cache block it remembers of which tokens it holds the recurrent state or keys.

It mirrors vLLM's own one (block tables that only grow, the state of the last step read from the column before), so a
state that was never written, or belongs to other tokens, is noticed the moment it is read.
"""

from dataclasses import dataclass, field
from typing import Any

from paceline.engine_ext.coalescing.scheduler import PLAN_ATTRIBUTE

KEYS = -1
"""Stands for the attention layers' group among those of recurrent state."""


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
        starts, hit = {}, set()
        for new in output.scheduled_new_reqs:
            self._replace_table(new.req_id, new.block_ids)
            starts[new.req_id] = new.num_computed_tokens
            hit.add(new.req_id)
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            starts[request_id] = cached.num_computed_tokens[index]
            new_ids = cached.new_block_ids[index]
            if request_id in cached.resumed_req_ids:
                self._replace_table(request_id, new_ids)
                hit.add(request_id)
            elif new_ids is not None:
                for table, ids in zip(self.tables[request_id], new_ids, strict=True):
                    table.extend(ids)
        plan = getattr(output, PLAN_ATTRIBUTE, None)
        for request_id, count in output.num_scheduled_tokens.items():
            if request_id in hit:
                self._check_keys(request_id, tokens[request_id], starts[request_id])
            targets = plan.targets if plan is not None and plan.request_id == request_id else ()
            self._compute(request_id, tokens[request_id], starts[request_id], count, targets)

    def _replace_table(self, request_id: str, block_ids: Any) -> None:
        self.tables[request_id] = [list(ids) for ids in block_ids]
        self.columns.pop(request_id, None)

    def _check_keys(self, request_id: str, tokens: tuple[int, ...], start: int) -> None:
        for column, block in enumerate(self.tables[request_id][0][: start // self.block]):
            held = self.holds.get((KEYS, block))
            expected = tokens[column * self.block : (column + 1) * self.block]
            assert held == expected, f"{request_id} hits wrong keys at {column * self.block}"

    def _compute(self, request_id: str, tokens: tuple[int, ...], start: int, count: int, targets: Any) -> None:
        end = start + count
        source = self.columns.get(request_id, (start - 1) // self.block)
        final = (end - 1) // self.block
        for column in range(start // self.block, final + 1):
            block = self.tables[request_id][0][column]
            self.holds[KEYS, block] = tokens[column * self.block : min(end, (column + 1) * self.block)]
        for group, table in enumerate(self.tables[request_id][1:]):
            if start:
                held = self.holds.get((group, table[source]))
                assert held == tokens[:start], f"{request_id} reads a wrong state at {start}, group {group}"
            for position in (*targets, end):
                column = final if position == end else position // self.block - 1
                assert table[column], f"{request_id} has no block for the state at {position}"
                self.holds[group, table[column]] = tokens[:position]
        self.columns[request_id] = final

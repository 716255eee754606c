"""The worker's part of coalescing: finds the planned row of a step's batch, and sees to it that every state is written.

The scheduler publishes a state's hash before the state exists. A state that is not written would be served to the
next prompt that hits it, so a step that leaves one unwritten ends the engine, before any later step can read it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

import torch

from paceline.engine_ext.coalescing.plan import SpanPlan

EXPORTS_ATTRIBUTE: Final = "paceline_exports"
"""Where the metadata of gated delta net layers carries the planned row."""


class UnwrittenStateError(RuntimeError):
    """A state that was promised to the prefix cache has not been written."""


@dataclass(frozen=True)
class RowExports:
    """The planned row of a packed batch.

    `token_start` counts tokens of the batch; `cuts` are offsets in tokens from the row's start; `slots` [len(cuts)] are
    the cache blocks that receive the states there, `running_slot` [1] the row's own one. Kernels see the prefill rows
    alone: there it is row `prefill_row`, and row r has the tokens [prefill_bounds[r], prefill_bounds[r + 1]).
    `row` and `columns` [len(cuts)] are where the slots stand in the block table.
    """

    row: int
    columns: torch.Tensor
    token_start: int
    cuts: tuple[int, ...]
    prefill_row: int
    prefill_bounds: tuple[int, ...]
    slots: torch.Tensor
    running_slot: torch.Tensor


@dataclass
class ExportLedger:
    """Which layers owe the states of a plan, and which have written them."""

    plan: SpanPlan
    owing: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def verify(self) -> None:
        """Raise UnwrittenStateError unless at least one layer owed the states and all that did wrote them."""
        missing = sorted(self.owing - self.written)
        if missing or not self.owing:
            layers = ", ".join(missing) or "no layer was asked"
            raise UnwrittenStateError(f"states at {self.plan.targets} of {self.plan.request_id} not written: {layers}")


@dataclass
class _Current:
    ledger: ExportLedger | None = None
    cut: "Cut | None" = None


@dataclass(frozen=True)
class Cut:
    """What the kernels of a layer cut, and the layer's cache of recurrent states [blocks, ...]."""

    exports: RowExports
    states: torch.Tensor


_current: Final = _Current()


@contextmanager
def exporting(plan: SpanPlan | None) -> Iterator[None]:
    """Run one step under a plan; on a normal end, verify that its states were written."""
    if plan is None:
        yield
        return
    ledger = ExportLedger(plan)
    _current.ledger = ledger
    try:
        yield
    finally:
        _current.ledger = None
    ledger.verify()


@contextmanager
def cutting(exports: RowExports, layer: Any) -> Iterator[None]:
    """Have the kernels that a layer calls in this block cut the planned row."""
    _current.cut = Cut(exports, layer.kv_cache[1])
    try:
        yield
    finally:
        _current.cut = None


def current_cut() -> Cut | None:
    """Return what the layer that is computed now is to cut, None outside of `cutting`."""
    return _current.cut


def mark_written(layer: str) -> None:
    """Note that a layer has written all states of the plan."""
    if _current.ledger is not None:
        _current.ledger.written.add(layer)


def find_row(plan: SpanPlan, query_starts: list[int], sequence_ends: list[int]) -> int:
    """Return the row of the batch that computes the plan's span.

    `query_starts` [rows + 1] are token offsets in the batch, `sequence_ends` [rows] tokens of each request afterwards.
    """
    rows = [
        row
        for row, end in enumerate(sequence_ends)
        if end == plan.end and query_starts[row + 1] - query_starts[row] == plan.tokens
    ]
    if len(rows) != 1:
        raise UnwrittenStateError(f"{len(rows)} rows of the batch look like the planned span {plan}")
    return rows[0]


def exports_for(plan: SpanPlan, common: Any, metadata: Any, block_table: torch.Tensor, block_tokens: int) -> RowExports:
    """Build a layer group's exports from vLLM's batch metadata; the slots are read on the table's own device."""
    query_starts = common.query_start_loc_cpu.tolist()
    row = find_row(plan, query_starts, common.seq_lens_cpu_upper_bound.tolist()[: common.num_reqs])
    if row < metadata.num_decodes:
        raise UnwrittenStateError(f"the planned span {plan} was taken for a decode")
    columns = torch.tensor(plan.columns(block_tokens).targets, device=block_table.device)
    slots = _slots(block_table, row, columns)
    if slots.device.type == "cpu" and not bool((slots > 0).all()):
        raise UnwrittenStateError(f"the block table has no block for a state of {plan}: {slots.tolist()}")
    first = metadata.num_decodes
    return RowExports(
        row=row,
        columns=columns,
        token_start=query_starts[row],
        cuts=tuple(target - plan.start for target in plan.targets),
        prefill_row=row - first,
        prefill_bounds=tuple(s - query_starts[first] for s in query_starts[first : first + metadata.num_prefills + 1]),
        slots=slots,
        running_slot=_running_slot(metadata, row),
    )


def _slots(block_table: torch.Tensor, row: int, columns: torch.Tensor) -> torch.Tensor:
    return block_table[row].index_select(0, columns).to(torch.int64)


def _running_slot(metadata: Any, row: int) -> torch.Tensor:
    return metadata.non_spec_state_indices_tensor[row : row + 1].to(torch.int64)


def wrap_build(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a metadata builder's `build`: a planned step's metadata carries the exports of its layers."""

    @wraps(stock)
    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = stock(self, common_prefix_len, common_attn_metadata, *args, **kwargs)
        ledger = _current.ledger
        if ledger is not None:
            table, tokens = common_attn_metadata.block_table_tensor, self.kv_cache_spec.block_size
            exports = exports_for(ledger.plan, common_attn_metadata, metadata, table, tokens)
            setattr(metadata, EXPORTS_ATTRIBUTE, exports)
            ledger.owing.update(self.layer_names)
        return metadata

    return build


def wrap_update_block_table(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a builder's `update_block_table`, by which a group of layers takes over another group's metadata."""

    @wraps(stock)
    def update_block_table(self: Any, metadata: Any, blk_table: torch.Tensor, slot_mapping: torch.Tensor) -> Any:
        updated = stock(self, metadata, blk_table, slot_mapping)
        exports, ledger = getattr(metadata, EXPORTS_ATTRIBUTE, None), _current.ledger
        if exports is not None and ledger is not None:
            slots = _slots(blk_table, exports.row, exports.columns)
            moved = replace(exports, slots=slots, running_slot=_running_slot(updated, exports.row))
            setattr(updated, EXPORTS_ATTRIBUTE, moved)
            ledger.owing.update(self.layer_names)
        return updated

    return update_block_table


def wrap_execute_model(stock: Callable[..., Any], plan_attribute: str) -> Callable[..., Any]:
    """Wrap a worker's `execute_model`: runs a planned step under its plan."""

    @wraps(stock)
    def execute_model(self: Any, scheduler_output: Any) -> Any:
        with exporting(getattr(scheduler_output, plan_attribute, None)):
            return stock(self, scheduler_output)

    return execute_model

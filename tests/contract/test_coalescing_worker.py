"""The worker's part without an engine: which row is planned, what is owed, and the kernels cut into segments."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import _custom_ops as kernels

from paceline.engine_ext.coalescing import forward_cpu, recurrence, worker
from paceline.engine_ext.coalescing.plan import SpanPlan

BLOCK = 64
PLAN = SpanPlan("a", 128, 420, (256, 384), (256,))


def common(query_lengths, sequence_ends):
    starts = torch.tensor([0, *query_lengths]).cumsum(0)
    return SimpleNamespace(
        query_start_loc_cpu=starts, seq_lens_cpu_upper_bound=torch.tensor(sequence_ends), num_reqs=len(sequence_ends)
    )


def metadata(decodes, slots):
    return SimpleNamespace(num_decodes=decodes, non_spec_state_indices_tensor=torch.tensor(slots, dtype=torch.int32))


def table(rows):
    return torch.tensor(rows, dtype=torch.int32)


def test_the_planned_row_is_found_behind_decodes_with_the_blocks_of_its_states():
    blocks = table([[1, 2, 3, 0, 0, 0, 0], [0, 9, 0, 11, 0, 12, 13], [0] * 7])
    exports = worker.exports_for(PLAN, common([1, 292], [150, 420]), metadata(1, [3, 13]), blocks, BLOCK)
    assert (exports.row, exports.token_start, exports.cuts) == (1, 1, (128, 256))
    assert exports.slots.tolist() == [11, 12]
    assert exports.running_slot.tolist() == [13]


def test_a_table_without_a_block_for_a_state_is_an_error():
    blocks = table([[0, 9, 0, 0, 0, 12, 13]])
    with pytest.raises(worker.UnwrittenStateError, match="no block"):
        worker.exports_for(PLAN, common([292], [420]), metadata(0, [13]), blocks, BLOCK)


@pytest.mark.parametrize(("lengths", "ends"), [([292, 292], [420, 420]), ([291], [420]), ([292], [421])])
def test_a_batch_without_exactly_one_such_row_is_an_error(lengths, ends):
    with pytest.raises(worker.UnwrittenStateError, match="rows of the batch"):
        worker.find_row(PLAN, [0, *torch.tensor(lengths).cumsum(0).tolist()], ends)


def test_a_planned_row_taken_for_a_decode_is_an_error():
    with pytest.raises(worker.UnwrittenStateError, match="decode"):
        worker.exports_for(PLAN, common([292], [420]), metadata(1, [13]), table([[0, 9, 0, 11, 0, 12, 13]]), BLOCK)


def test_a_step_ends_only_when_every_layer_wrote():
    ledger = worker.ExportLedger(PLAN, owing={"layer.0", "layer.1"}, written={"layer.1"})
    with pytest.raises(worker.UnwrittenStateError, match=r"\(256, 384\) of a not written: layer\.0"):
        ledger.verify()
    ledger.written.add("layer.0")
    ledger.verify()


def test_a_step_in_which_no_layer_was_asked_is_an_error():
    with pytest.raises(worker.UnwrittenStateError, match="no layer was asked"), worker.exporting(PLAN):
        pass


def test_an_error_of_the_step_itself_is_not_hidden():
    with pytest.raises(ZeroDivisionError), worker.exporting(PLAN):
        raise ZeroDivisionError


def test_a_step_without_a_plan_owes_nothing():
    with worker.exporting(None):
        worker.mark_written("layer.0")


@given(st.integers(0, 500), st.integers(1, 500), st.lists(st.integers(1, 499), unique=True, max_size=4))
def test_segments_tile_the_row_and_end_at_each_cut(start, length, cuts):
    inside = tuple(sorted(cut for cut in cuts if cut < length))
    parts = list(recurrence.segments(start, start + length, inside))
    assert [low for low, _ in parts] == [start, *(start + cut for cut in inside)]
    assert [high for _, high in parts] == [*(start + cut for cut in inside), start + length]


def rule_call(tokens, starts, indices, seed=0):
    """Random inputs of vLLM's CPU gated delta rule: 1 key head, 2 value heads of 128, bfloat16."""
    random = torch.Generator().manual_seed(seed)

    def tensor(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=random).to(dtype)

    return {
        "query": tensor(1, tokens, 1, 128),
        "key": tensor(1, tokens, 1, 128),
        "value": tensor(1, tokens, 2, 128),
        "g": -tensor(1, tokens, 2, dtype=torch.float32).abs(),
        "beta": torch.sigmoid(tensor(1, tokens, 2)),
        "initial_state": tensor(12, 2, 128, 128, dtype=torch.float32) * 0.1,
        "output_final_state": True,
        "cu_seqlens": torch.tensor(starts, dtype=torch.int32),
        "head_first": False,
        "use_qk_l2norm_in_kernel": True,
        "initial_state_indices": torch.tensor(indices, dtype=torch.int32),
    }


@settings(max_examples=10, deadline=None)
@given(st.integers(257, 400), st.sampled_from([(64,), (128, 256), (64, 128, 192, 256)]))
def test_the_cut_rule_equals_the_whole_one_and_leaves_the_state_of_each_prefix(tokens, cuts):
    other = 70  # another row before the planned one, which is not cut
    call = rule_call(other + tokens, [0, other, other + tokens], [1, 2])
    whole = {**call, "initial_state": call["initial_state"].clone()}
    expected, _ = kernels.chunk_gated_delta_rule_cpu(**whole)
    exports = worker.RowExports(1, other, cuts, torch.arange(5, 5 + len(cuts)), torch.tensor([2]))
    before = call["initial_state"].clone()
    with forward_cpu._cutting(forward_cpu._Cut(1, exports)):
        output, _ = forward_cpu.CuttingOps(kernels).chunk_gated_delta_rule_cpu(**call)
    assert torch.equal(output, expected)
    assert torch.equal(call["initial_state"][2], whole["initial_state"][2])
    for slot, cut in zip(exports.slots.tolist(), cuts, strict=True):
        prefix = {name: call[name][:, other : other + cut] for name in ("query", "key", "value", "g", "beta")}
        alone = {
            **call,
            **{name: part.contiguous() for name, part in prefix.items()},
            "initial_state": before.clone(),
            "cu_seqlens": torch.tensor([0, cut], dtype=torch.int32),
            "initial_state_indices": torch.tensor([2], dtype=torch.int32),
        }
        kernels.chunk_gated_delta_rule_cpu(**alone)
        assert torch.equal(call["initial_state"][slot], alone["initial_state"][2])


@pytest.mark.parametrize("dim_first", [False, True])
def test_the_convolution_keeps_its_last_inputs_before_each_cut(dim_first):
    inputs = torch.arange(10 * 6, dtype=torch.float32).reshape(10, 6).to(torch.bfloat16)
    states = torch.zeros((4, 6, 3) if dim_first else (4, 3, 6), dtype=torch.bfloat16)
    layer = SimpleNamespace(kv_cache=[states], conv1d=SimpleNamespace(weight=torch.zeros(6, 1, 4)))
    exports = worker.RowExports(0, 1, (4, 6), torch.tensor([3, 1]), torch.tensor([2]))
    forward_cpu.export_conv_states(layer, exports, inputs, dim_first=dim_first)
    expected = {3: inputs[2:5], 1: inputs[4:7]}
    for slot in range(4):
        wanted = expected.get(slot, torch.zeros(3, 6, dtype=torch.bfloat16))
        assert torch.equal(states[slot], wanted.T if dim_first else wanted)

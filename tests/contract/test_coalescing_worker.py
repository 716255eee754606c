"""The worker's part without an engine: which row is planned, what is owed, and the kernels cut into segments."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import _custom_ops as kernels

from paceline.engine_ext.coalescing import forward_cpu, forward_gpu, recurrence, worker
from paceline.engine_ext.coalescing.plan import SpanPlan

BLOCK = 64
PLAN = SpanPlan("a", 128, 420, (256, 384), (256,))


def common(query_lengths, sequence_ends):
    starts = torch.tensor([0, *query_lengths]).cumsum(0)
    return SimpleNamespace(
        query_start_loc_cpu=starts, seq_lens_cpu_upper_bound=torch.tensor(sequence_ends), num_reqs=len(sequence_ends)
    )


def metadata(decodes, slots):
    prefills = len(slots) - decodes
    return SimpleNamespace(
        num_decodes=decodes, num_prefills=prefills, non_spec_state_indices_tensor=torch.tensor(slots, dtype=torch.int32)
    )


def table(rows):
    return torch.tensor(rows, dtype=torch.int32)


def test_the_planned_row_is_found_behind_decodes_with_the_blocks_of_its_states():
    blocks = table([[1, 2, 3, 0, 0, 0, 0], [0, 9, 0, 11, 0, 12, 13], [0] * 7])
    exports = worker.exports_for(PLAN, common([1, 292], [150, 420]), metadata(1, [3, 13]), blocks, BLOCK)
    assert (exports.row, exports.token_start, exports.cuts) == (1, 1, (128, 256))
    assert (exports.prefill_row, exports.prefill_bounds) == (0, (0, 292))
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


def test_a_group_that_takes_over_metadata_reads_its_own_block_table():
    blocks = table([[1, 2, 3, 0, 0, 0, 0], [0, 9, 0, 11, 0, 12, 13]])
    group = SimpleNamespace(layer_names=["layer.7"])
    original = metadata(1, [3, 13])
    original.paceline_exports = worker.exports_for(PLAN, common([1, 292], [150, 420]), original, blocks, BLOCK)
    update = worker.wrap_update_block_table(lambda self, m, table, mapping: metadata(1, [4, 23]))
    with pytest.raises(worker.UnwrittenStateError, match=r"layer\.7"), worker.exporting(PLAN):
        updated = update(group, original, table([[5] * 7, [0, 19, 0, 21, 0, 22, 23]]), None)
    assert updated.paceline_exports.slots.tolist() == [21, 22]
    assert updated.paceline_exports.running_slot.tolist() == [23]


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


def planned_row(cuts, slots, running, *, start=0, bounds=()):
    """The exports of the last prefill row of a batch without decodes."""
    return worker.RowExports(0, torch.tensor([]), start, cuts, len(bounds) - 2, bounds, slots, torch.tensor([running]))


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
    exports = planned_row(cuts, torch.arange(5, 5 + len(cuts)), 2, start=other, bounds=(0, other, other + tokens))
    before = call["initial_state"].clone()
    layer = SimpleNamespace(kv_cache=[None, call["initial_state"]])
    with worker.cutting(exports, layer):
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
    exports = planned_row((4, 6), torch.tensor([3, 1]), 2, start=1, bounds=(0, 9))
    recurrence.export_conv_states(layer, exports, inputs, dim_first=dim_first)
    expected = {3: inputs[2:5], 1: inputs[4:7]}
    for slot in range(4):
        wanted = expected.get(slot, torch.zeros(3, 6, dtype=torch.bfloat16))
        assert torch.equal(states[slot], wanted.T if dim_first else wanted)


def summing_rule(self, *, q, k, v, g, beta, initial_state, cu_seqlens, chunk_indices, chunk_offsets, **_):
    """A stand-in for the GPU kernel: the state is the sum of the values, the output the state after each token.

    It checks the metadata of its one row as FLA reads them.
    """
    tokens = q.shape[1]
    assert cu_seqlens.tolist() == [0, tokens]
    chunks = -(-tokens // 64)
    assert chunk_indices.tolist() == [[0, chunk] for chunk in range(chunks)]
    assert chunk_offsets.tolist() == [0, chunks]
    output = initial_state[:, None] + v.float().cumsum(1)
    return output.to(v.dtype), output[:, -1]


def test_on_gpu_the_rule_is_cut_and_every_segment_starts_from_the_stored_state():
    cache = torch.zeros(9, 2, dtype=torch.bfloat16)
    exports = planned_row((64, 128), torch.tensor([4, 6]), 2, start=3, bounds=(0, 3, 203))
    values = torch.rand(1, 203, 2) + 0.5
    call = dict.fromkeys(("q", "k", "g", "beta"), values) | {
        "v": values,
        "initial_state": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "output_final_state": True,
        "cu_seqlens": torch.tensor([0, 3, 203], dtype=torch.int32),
        "chunk_indices": None,
        "chunk_offsets": None,
    }
    rule = forward_gpu.wrap_rule(summing_rule)
    with worker.cutting(exports, SimpleNamespace(kv_cache=[None, cache])):
        output, final = rule(None, **call)
    row = values[0, 3:]
    at_64 = (torch.tensor([3.0, 4.0]) + row[:64].sum(0)).to(torch.bfloat16)
    at_128 = (at_64.float() + row[64:128].sum(0)).to(torch.bfloat16)
    assert torch.equal(cache[4], at_64)
    assert torch.equal(cache[6], at_128)
    assert cache[[0, 1, 2, 3, 5, 7, 8]].count_nonzero() == 0
    torch.testing.assert_close(final[1], at_128.float() + row[128:].sum(0))
    torch.testing.assert_close(final[0], torch.tensor([1.0, 2.0]) + values[0, :3].sum(0))
    assert output.shape == (1, 203, 2)
    torch.testing.assert_close(output[0, -1], final[1])


def test_on_gpu_a_layer_without_a_plan_calls_the_stock_code_alone():
    seen = []
    core = forward_gpu.wrap_forward_core(
        lambda self, *args: seen.append(args), lambda: SimpleNamespace(attn_metadata=None), lambda: False
    )
    core(SimpleNamespace(prefix="layer.0"), "qkv", "b", "a", "out")
    assert seen == [("qkv", "b", "a", "out")]


def test_on_gpu_a_layer_with_a_plan_writes_its_convolution_and_says_so():
    states = torch.zeros(4, 3, 6)
    layer = SimpleNamespace(
        prefix="layer.0", kv_cache=[states, None], conv1d=SimpleNamespace(weight=torch.zeros(6, 1, 4))
    )
    exports = planned_row((4,), torch.tensor([3]), 2, bounds=(0, 9))
    context = SimpleNamespace(attn_metadata={"layer.0": SimpleNamespace(paceline_exports=exports)})
    core = forward_gpu.wrap_forward_core(lambda self, *args: None, lambda: context, lambda: False)
    inputs = torch.arange(54.0).reshape(9, 6)
    with worker.exporting(PLAN):
        worker._current.ledger.owing.add("layer.0")
        core(layer, inputs)
    assert torch.equal(states[3], inputs[1:4])

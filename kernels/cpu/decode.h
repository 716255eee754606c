// Sequences of one query, as they decode: few rows share a key, so keys and values are read where they lie, once,
// instead of packed first. Eight elements of keys, or tokens of values, are eight streams that the processor prefetches.
#pragma once
#include "rows.h"

namespace {

constexpr int kDecodeTokens = 512;  // keys per step of the online softmax
constexpr int kDecodeRows = 8;      // most query heads of a kv head
constexpr int kStreams = 8;

struct DecodeScratch {
  float* query;    // [256][rows] scaled
  float* scores;   // [rows][512] scores, then weights
  float* sums;     // [rows][256] weighted values
  float* maxima;   // [rows]
  float* weights;  // [rows]
};

constexpr size_t kDecodeFloats = kDecodeRows * (2 * kHeadSize + kDecodeTokens + 2);
static_assert(kDecodeFloats * sizeof(float) <= kTileTokens * kHeadSize * 2, "must fit where a packed tile does");

static inline DecodeScratch lay_out_decode(void* workspace, int rows) {
  DecodeScratch s;
  s.query = static_cast<float*>(workspace);
  s.scores = s.query + rows * kHeadSize;
  s.sums = s.scores + rows * kDecodeTokens;
  s.maxima = s.sums + rows * kHeadSize;
  s.weights = s.maxima + rows;
  return s;
}

// sums[kRows][kLanes] += factors[kRows] * stream for each of `count` streams, in their order.
template <int kRows, class T>
static inline __attribute__((always_inline)) void add_streams(const T* streams, int64_t stride, int count,
                                                              const float* factors, int row_stride, int stream_stride,
                                                              float* sums, int sum_stride) {
  Vec sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = load(sums + r * sum_stride);
#pragma GCC unroll 8
  for (int k = 0; k < count; ++k) {
    const Vec v = load_elements(streams + k * stride);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      sum[r] = multiply_add(broadcast(factors[r * row_stride + k * stream_stride]), v, sum[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) store(sums + r * sum_stride, sum[r]);
}

// Scores of tokens that lie in one page.
template <int kRows, class T>
static void score_run(const float* query, const T* keys, int64_t element_stride, int tokens, float* scores) {
  for (int d = 0; d < kHeadSize; d += kStreams)
    for (int t = 0; t < tokens; t += kLanes)
      add_streams<kRows>(keys + d * element_stride + t, element_stride, kStreams, query + d * kRows, 1, kRows,
                         scores + t, kDecodeTokens);
}

template <int kRows, class T>
static void add_run(const float* weights, const T* values, int64_t token_stride, int tokens, float* sums) {
  for (int d = 0; d < kHeadSize; d += kLanes) {
    if (tokens == kStreams)
      add_streams<kRows>(values + d, token_stride, kStreams, weights, kDecodeTokens, 1, sums + d, kHeadSize);
    else
      add_streams<kRows>(values + d, token_stride, tokens, weights, kDecodeTokens, 1, sums + d, kHeadSize);
  }
}

template <int kRows, class T>
static void decode(const Call& call, const Task& task, const Rows& rows, void* workspace) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const DecodeScratch s = lay_out_decode(workspace, kRows);
  const PagedTile<T> tile{call, call.block_table + task.sequence * call.table_stride, task.kv_head};
  const T* query = static_cast<const T*>(call.query) + call.query_start[task.sequence] * call.query_token_stride +
                   static_cast<int64_t>(task.kv_head) * rows.group * call.query_head_stride;
  for (int r = 0; r < kRows; ++r) {
    float wide[kHeadSize] = {};
    for (int d = 0; d < kHeadSize && r < rows.count; d += kLanes)
      store(wide + d, load_elements(query + r * call.query_head_stride + d) * broadcast(call.scale * kLog2E));
    for (int d = 0; d < kHeadSize; ++d) s.query[d * kRows + r] = wide[d];
    s.maxima[r] = kMinusInfinity;
    s.weights[r] = 0.0f;
  }
  std::memset(s.sums, 0, sizeof(float) * kRows * kHeadSize);
  for (int first = task.key_begin; first < task.key_end; first += kDecodeTokens) {
    const int tokens = smaller(kDecodeTokens, task.key_end - first), padded = round_up(tokens, kSlotTokens);
    std::memset(s.scores, 0, sizeof(float) * kRows * kDecodeTokens);
    for (int t = 0, run; t < padded; t += run) {
      run = smaller(padded - t, tile.slots_left(first + t) * kSlotTokens);
      score_run<kRows>(s.query, tile.key(first + t), call.key_element_stride, run, s.scores + t);
    }
    for (int r = 0; r < kRows; ++r) {
      float* scores = s.scores + r * kDecodeTokens;
      weigh(scores, [scores](int i, Vec w) { store(scores + i, w); }, tokens, padded, s.sums + r * kHeadSize,
            s.maxima[r], s.weights[r]);
    }
    for (int t = 0; t < tokens; t += kStreams)
      add_run<kRows>(s.scores + t, tile.value(first + t), call.value_token_stride, smaller(kStreams, tokens - t), s.sums);
  }
  store_rows<T>(call, task, rows, s.sums, s.maxima, s.weights);
}

// Runs a task of a sequence of one query and at most eight heads. A longer sequence's last query does not qualify:
// whether it stands alone in a task depends on the number of threads, and results must not.
template <class T>
static bool run_decode(const Call& call, const Task& task, void* workspace) {
  const Rows rows = rows_of(call, task, 1);
  if (call.query_start[task.sequence + 1] - call.query_start[task.sequence] != 1 || rows.count > kDecodeRows) return false;
  if (rows.count <= 2) decode<2, T>(call, task, rows, workspace);
  else if (rows.count <= 4) decode<4, T>(call, task, rows, workspace);
  else if (rows.count <= 6) decode<6, T>(call, task, rows, workspace);
  else decode<8, T>(call, task, rows, workspace);
  return true;
}

}  // namespace

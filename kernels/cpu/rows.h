// What a task reads and writes, for every level: its rows, the pages of its sequence, and its results.
#pragma once
#include <cstring>

#include "api.h"
#include "softmax.h"

namespace {

using paceline::Call;
using paceline::kCacheLine;
using paceline::kHeadSize;
using paceline::kRowUnit;
using paceline::kSlotTokens;
using paceline::kTileTokens;
using paceline::Task;

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int round_up(int a, int unit) { return (a + unit - 1) / unit * unit; }

// Where a task's rows stand: row r sees keys up to and including its own token.
struct Rows {
  int group, first_position, count, padded;

  int visible(int row, int first_token) const {
    return first_position + smaller(row, count - 1) / group + 1 - first_token;
  }
};

static inline Rows rows_of(const Call& call, const Task& task, int unit) {
  Rows rows;
  rows.group = call.num_heads / call.num_kv_heads;
  const int queries = call.query_start[task.sequence + 1] - call.query_start[task.sequence];
  rows.first_position = call.seq_lens[task.sequence] - queries + task.first_query;
  rows.count = task.num_queries * rows.group;
  rows.padded = round_up(rows.count, unit);
  return rows;
}

// Pages are read by slot: 16 tokens that start at a multiple of 16 never straddle a page.
template <class T>
struct PagedTile {
  const Call& call;
  const int32_t* table;
  int kv_head;

  const T* key(int token) const {
    return static_cast<const T*>(call.key) + block(token) * call.key_block_stride + kv_head * call.key_head_stride +
           token % call.page_size;
  }
  const T* value(int token) const {
    return static_cast<const T*>(call.value) + block(token) * call.value_block_stride +
           kv_head * call.value_head_stride + (token % call.page_size) * call.value_token_stride;
  }
  int slots_left(int token) const { return (call.page_size - token % call.page_size) / kSlotTokens; }
  int64_t block(int token) const { return table[token / call.page_size]; }
};

template <class T>
static void store_rows(const Call& call, const Task& task, const Rows& rows, const float* sums,
                       const float* maxima, const float* weights) {
  if (task.partial) {
    std::memcpy(task.partial, sums, sizeof(float) * rows.count * kHeadSize);
    std::memcpy(task.partial + rows.count * kHeadSize, maxima, sizeof(float) * rows.count);
    std::memcpy(task.partial + rows.count * (kHeadSize + 1), weights, sizeof(float) * rows.count);
    return;
  }
  T* out = static_cast<T*>(call.out) + static_cast<int64_t>(task.kv_head) * rows.group * call.out_head_stride;
  const int64_t first = call.query_start[task.sequence] + task.first_query;
  for (int r = 0; r < rows.count; ++r) {
    T* to = out + (first + r / rows.group) * call.out_token_stride + (r % rows.group) * call.out_head_stride;
    const Vec inverse = broadcast(1.0f / weights[r]);
    for (int d = 0; d < kHeadSize; d += kLanes) store_elements(to + d, load(sums + r * kHeadSize + d) * inverse);
  }
}

}  // namespace

// One task of the attention with fp32 arithmetic: included once by each level after its vector header.
#pragma once
#include <cstring>

#include "decode.h"
#include "rows.h"

namespace {

constexpr int kPanel = kPanelVectors * kLanes;  // columns of a packed panel
constexpr int kPanelsPerHead = kHeadSize / kPanel;
constexpr int kKeyStrip = 16;  // elements packed of one slot's keys before the next slot's: few TLB entries, one panel
constexpr int kStepRows = kBlockRows > kRowUnit ? kBlockRows : kRowUnit;  // whole blocks and whole units
constexpr int kLineFloats = kCacheLine / sizeof(float);
static_assert(kPanel % kSlotTokens == 0 && kTileTokens % kPanel == 0 && kHeadSize % kKeyStrip == 0);
static_assert(kStepRows % kRowUnit == 0 && kStepRows % kBlockRows == 0 && kBandRows % kStepRows == 0);

// The scratch of one task, laid out in the thread's workspace.
struct Scratch {
  float* query;    // [rows / kRowUnit][256][kRowUnit] scaled: one stream for each unit of a register block
  float* sums;     // [rows][256] weighted values
  float* scores;   // [rows][128] scores, then weights
  float* packed;   // one tile of keys, then of values
  float* maxima;   // [rows]
  float* weights;  // [rows]
};

static inline size_t scratch_floats(int rows) {
  return static_cast<size_t>(rows) * (2 * kHeadSize + kTileTokens + 2) + kTileTokens * kHeadSize;
}

static inline Scratch lay_out(void* workspace, int rows) {
  Scratch s;
  float* p = static_cast<float*>(workspace);
  s.packed = p;
  p += kTileTokens * kHeadSize;
  s.query = p;
  p += static_cast<size_t>(rows) * kHeadSize;
  s.sums = p;
  p += static_cast<size_t>(rows) * kHeadSize;
  s.scores = p;
  p += static_cast<size_t>(rows) * kTileTokens;
  s.maxima = p;
  p += rows;
  s.weights = p;
  return s;
}

// The left operand of a product, from a row on: plain rows, and rows interleaved by kRowUnit.
struct PlainRows {
  const float* first;
  int stride;

  PlainRows from(int row) const { return {first + row * stride, stride}; }
  float element(int row, int k) const { return first[row * stride + k]; }
};

struct InterleavedRows {
  const float* first;  // of a whole unit, or within one of a block that ends with it

  static int offset(int row) { return row / kRowUnit * (kRowUnit * kHeadSize) + row % kRowUnit; }
  InterleavedRows from(int row) const { return {first + offset(row)}; }
  float element(int row, int k) const { return first[offset(row) + k * kRowUnit]; }
};

// c[rows][kPanel] (+)= a[rows][depth] * b[depth][kPanel], each sum in the order of depth.
template <int kRows, bool kAccumulate, class Left>
static inline __attribute__((always_inline)) void multiply(const Left& a, const float* b, float* c, int c_stride, int depth) {
  Vec sum[kRows][kPanelVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j)
      sum[i][j] = kAccumulate ? load(c + i * c_stride + j * kLanes) : broadcast(0.0f);
#pragma GCC unroll 4
  for (int k = 0; k < depth; ++k) {
    Vec column[kPanelVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) column[j] = load(b + k * kPanel + j * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Vec scalar = broadcast(a.element(i, k));
#pragma GCC unroll 4
      for (int j = 0; j < kPanelVectors; ++j) sum[i][j] = multiply_add(scalar, column[j], sum[i][j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kPanelVectors; ++j) store(c + i * c_stride + j * kLanes, sum[i][j]);
}

template <bool kAccumulate, class Left>
static void multiply_rows(int rows, const Left& a, const float* b, float* c, int c_stride, int depth) {
  int r = 0;
  for (; r + kBlockRows <= rows; r += kBlockRows)
    multiply<kBlockRows, kAccumulate>(a.from(r), b, c + r * c_stride, c_stride, depth);
  if constexpr (kBlockRows > kRowUnit)
    for (; r < rows; r += kRowUnit) multiply<kRowUnit, kAccumulate>(a.from(r), b, c + r * c_stride, c_stride, depth);
}

// Keys of `slots` slots as panels [256][kPanel]; a panel's slots past the last are zero. Slots of one page are read
// together, by strips: an element's tokens are contiguous there, and the next element's are a page further.
template <class T>
static void pack_keys(const PagedTile<T>& tile, int first_token, int slots, float* packed) {
  constexpr int kSlotsPerPanel = kPanel / kSlotTokens;
  const auto at = [packed](int slot) {
    return packed + (slot / kSlotsPerPanel) * (kHeadSize * kPanel) + (slot % kSlotsPerPanel) * kSlotTokens;
  };
  for (int s = 0, run; s < slots; s += run) {
    const T* from = tile.key(first_token + s * kSlotTokens);
    run = smaller(slots - s, tile.slots_left(first_token + s * kSlotTokens));
    for (int strip = 0; strip < kHeadSize; strip += kKeyStrip)
      for (int j = 0; j < run; ++j)
        for (int d = strip; d < strip + kKeyStrip; ++d)
          for (int i = 0; i < kSlotTokens; i += kLanes)
            store(at(s + j) + d * kPanel + i,
                  load_elements(from + d * tile.call.key_element_stride + j * kSlotTokens + i));
  }
  for (int s = slots; s % kSlotsPerPanel; ++s)
    for (int d = 0; d < kHeadSize; ++d)
      for (int i = 0; i < kSlotTokens; i += kLanes) store(at(s) + d * kPanel + i, broadcast(0.0f));
}

// Values of `tokens` tokens as panels [128][kPanel].
template <class T>
static void pack_values(const PagedTile<T>& tile, int first_token, int tokens, float* packed) {
  for (int s = 0; s < tokens; s += kSlotTokens) {
    const T* from = tile.value(first_token + s);
    const int count = smaller(kSlotTokens, tokens - s);
    for (int j = 0; j < count; ++j)
      for (int p = 0; p < kPanelsPerHead; ++p)
        for (int i = 0; i < kPanel; i += kLanes)
          store(packed + p * (kTileTokens * kPanel) + (s + j) * kPanel + i,
                load_elements(from + j * tile.call.value_token_stride + p * kPanel + i));
  }
}

// Whether tokens [begin, end) of packed values hold an infinity or NaN: zero weights don't hide those.
static bool has_nonfinite(const float* packed, int begin, int end) {
  Vec probe = broadcast(0.0f);
  for (int p = 0; p < kPanelsPerHead; ++p)
    for (int i = begin * kPanel; i < end * kPanel; i += kLanes)
      probe = multiply_add(load(packed + p * (kTileTokens * kPanel) + i), broadcast(0.0f), probe);
  const float sum = sum_lanes(probe);
  return sum != sum;
}

// Rows are taken by bands: a band's part of the scratch stays near while all panels pass by.
static void score_tile(const Scratch& s, const Rows& rows, int first_token, int tokens) {
  for (int begin = 0; begin < rows.padded; begin += kBandRows) {
    const int end = smaller(begin + kBandRows, rows.padded);
    for (int c = 0; c < tokens; c += kPanel) {
      int first = begin;  // rows before it see nothing of this panel
      while (first < end && rows.visible(smaller(first + kStepRows, end) - 1, first_token) <= c)
        first = smaller(first + kStepRows, end);
      multiply_rows<false>(end - first, InterleavedRows{s.query}.from(first), s.packed + c * kHeadSize,
                           s.scores + first * kTileTokens + c, kTileTokens, kHeadSize);
    }
  }
}

static void add_band(const Scratch& s, const Rows& rows, int begin, int end, int first_token, int tokens, bool by_row) {
  const int step = by_row ? 1 : kBlockRows;
  for (int p = 0; p < kPanelsPerHead; ++p) {
    const float* panel = s.packed + p * (kTileTokens * kPanel);
    for (int r = begin; r < end; r += step) {
      const int last = smaller(r + step, end) - 1;
      const int depth = smaller(tokens, rows.visible(last, first_token));
      if (depth <= 0) continue;
      const PlainRows a{s.scores + r * kTileTokens, kTileTokens};
      float* c = s.sums + r * kHeadSize + p * kPanel;
      // The next block's sums are far: they were last touched a tile ago.
      for (int i = last + 1; i < smaller(last + 1 + step, end); ++i)
        for (int d = 0; d < kPanel; d += kLineFloats) __builtin_prefetch(s.sums + i * kHeadSize + p * kPanel + d);
      if (by_row) multiply<1, true>(a, panel, c, kHeadSize, depth);
      else multiply_rows<true>(last - r + 1, a, panel, c, kHeadSize, depth);
    }
  }
}

static void add_values(const Scratch& s, const Rows& rows, int first_token, int tokens) {
  const int hidden_from = rows.visible(0, first_token);
  const bool by_row = hidden_from < tokens && has_nonfinite(s.packed, hidden_from > 0 ? hidden_from : 0, tokens);
  for (int begin = 0; begin < rows.padded; begin += kBandRows)
    add_band(s, rows, begin, smaller(begin + kBandRows, rows.padded), first_token, tokens, by_row);
}

template <class T>
static void load_queries(const Call& call, const Task& task, const Rows& rows, const Scratch& s) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const Vec scale = broadcast(call.scale * kLog2E);
  const T* query = static_cast<const T*>(call.query) + static_cast<int64_t>(task.kv_head) * rows.group * call.query_head_stride;
  const int64_t first = call.query_start[task.sequence] + task.first_query;
  for (int r = 0; r < rows.padded; ++r) {
    float* to = s.query + InterleavedRows::offset(r);
    if (r >= rows.count) {
      for (int d = 0; d < kHeadSize; ++d) to[d * kRowUnit] = 0.0f;
      continue;
    }
    const T* from = query + (first + r / rows.group) * call.query_token_stride + (r % rows.group) * call.query_head_stride;
    for (int d = 0; d < kHeadSize; d += kLanes) {
      float lanes[kLanes];
      store(lanes, load_elements(from + d) * scale);
      for (int i = 0; i < kLanes; ++i) to[(d + i) * kRowUnit] = lanes[i];
    }
  }
}

template <class T>
static void run_task(const Call& call, const Task& task, void* workspace) {
  if (run_decode<T>(call, task, workspace)) return;
  const Rows rows = rows_of(call, task, kRowUnit);
  const Scratch s = lay_out(workspace, rows.padded);
  const PagedTile<T> tile{call, call.block_table + task.sequence * call.table_stride, task.kv_head};
  load_queries<T>(call, task, rows, s);
  std::memset(s.sums, 0, sizeof(float) * rows.padded * kHeadSize);
  for (int r = 0; r < rows.padded; ++r) {
    s.maxima[r] = kMinusInfinity;
    s.weights[r] = 0.0f;
  }
  for (int first = task.key_begin; first < task.key_end; first += kTileTokens) {
    const int tokens = smaller(kTileTokens, task.key_end - first);
    pack_keys(tile, first, round_up(tokens, kSlotTokens) / kSlotTokens, s.packed);
    score_tile(s, rows, first, tokens);
    for (int r = 0; r < rows.padded; ++r) {
      float* scores = s.scores + r * kTileTokens;
      weigh(scores, [scores](int i, Vec w) { store(scores + i, w); }, smaller(tokens, rows.visible(r, first)),
            round_up(tokens, kSlotTokens), s.sums + r * kHeadSize, s.maxima[r], s.weights[r]);
    }
    pack_values(tile, first, tokens, s.packed);
    add_values(s, rows, first, tokens);
  }
  store_rows<T>(call, task, rows, s.sums, s.maxima, s.weights);
}

static size_t workspace_bytes(int32_t rows) {
  return scratch_floats(round_up(rows, kRowUnit)) * sizeof(float) + kCacheLine;
}

}  // namespace

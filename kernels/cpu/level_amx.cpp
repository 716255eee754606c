// bfloat16 with AMX tiles: products and sums of tiles of 16 x 32 by 32 x 16, softmax with AVX512.
#include "vector_avx512.h"

#include "decode.h"
#include "rows.h"

namespace {

constexpr int kKeysPerStep = 256; // keys per step of the online softmax: sums leave their tiles once a step
constexpr int kTileRows = 16;     // rows of a hardware tile
constexpr int kRowBlock = 2 * kTileRows;  // rows that go through scores, softmax and values before the next ones do
constexpr int kTileDepth = 32;    // bfloat16 elements that one product consumes
constexpr int kTileBytes = 64;    // a row of a hardware tile
constexpr int kKeySteps = kHeadSize / kTileDepth;
constexpr int kSlotElements = kHeadSize * kSlotTokens;      // a packed slot of keys
constexpr int kStripeElements = kKeysPerStep * kTileRows;   // 16 columns of packed values
constexpr int kExactTokens = 256;  // weights of the first tokens keep the bits that bfloat16 drops: few keys average none out

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

static void configure_tiles() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kTileBytes;
    config.rows[i] = kTileRows;
  }
  _tile_loadconfig(&config);
}

struct AmxScratch {
  uint16_t* keys;     // one step's, packed
  uint16_t* values;   // one step's, packed
  uint16_t* query;    // [rows][256]
  float* sums;        // [rows][256]
  float* scores;      // [32][256] of a block of rows
  uint16_t* weights;  // [32][256]
  uint16_t* rests;    // [32][256] what rounding took from the weights
  float* maxima;      // [rows]
  float* totals;      // [rows]
};

static size_t amx_workspace_bytes(int32_t rows) {
  const size_t padded = round_up(rows, kTileRows);
  return padded * (kHeadSize * 6 + 8) + kKeysPerStep * (kHeadSize * 4 + kRowBlock * 8) + kCacheLine;
}

static AmxScratch lay_out(void* workspace, int rows) {
  AmxScratch s;
  s.keys = static_cast<uint16_t*>(workspace);
  s.values = s.keys + kKeysPerStep * kHeadSize;
  s.query = s.values + kKeysPerStep * kHeadSize;
  s.weights = s.query + static_cast<size_t>(rows) * kHeadSize;
  s.rests = s.weights + kRowBlock * kKeysPerStep;
  s.scores = reinterpret_cast<float*>(s.rests + kRowBlock * kKeysPerStep);
  s.sums = s.scores + kRowBlock * kKeysPerStep;
  s.maxima = s.sums + static_cast<size_t>(rows) * kHeadSize;
  s.totals = s.maxima + rows;
  return s;
}

// Two rows of 16 elements as 16 pairs.
static inline __m512i interleave(const uint16_t* even, const uint16_t* odd) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Keys as [slot][pair of elements][token][2]; an odd last slot is followed by a slot of zeros.
static void pack_keys(const PagedTile<uint16_t>& tile, int first_token, int slots, uint16_t* packed) {
  for (int s = 0; s < slots; ++s) {
    const uint16_t* from = tile.key(first_token + s * kSlotTokens);
    uint16_t* to = packed + s * kSlotElements;
    const int64_t stride = tile.call.key_element_stride;
    for (int d = 0; d < kHeadSize; d += 2)
      _mm512_storeu_si512(to + d * kSlotTokens, interleave(from + d * stride, from + (d + 1) * stride));
  }
  if (slots % 2) std::memset(packed + slots * kSlotElements, 0, kSlotElements * sizeof(uint16_t));
}

// Values as [16 columns][pair of tokens][column][2]; tokens up to the next multiple of 32 are zero.
static void pack_values(const PagedTile<uint16_t>& tile, int first_token, int tokens, uint16_t* packed) {
  alignas(kCacheLine) static const uint16_t zeros[kHeadSize] = {};
  const int padded = round_up(tokens, kTileDepth);
  for (int t = 0; t < padded; t += 2) {
    const uint16_t* even = t < tokens ? tile.value(first_token + t) : zeros;
    const uint16_t* odd = t + 1 < tokens ? even + tile.call.value_token_stride : zeros;
    for (int d = 0; d < kHeadSize; d += kTileRows)
      _mm512_storeu_si512(packed + (d / kTileRows) * kStripeElements + t * kTileRows, interleave(even + d, odd + d));
  }
}

// Whether tokens [begin, end) of packed values hold an infinity or NaN; an odd begin looks at the token before too.
static bool has_nonfinite(const uint16_t* packed, int begin, int end) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  for (int d = 0; d < kHeadSize / kTileRows; ++d)
    for (int t = begin & ~1; t < end; t += 2) {
      const __m512i pair = _mm512_loadu_si512(packed + d * kStripeElements + t * kTileRows);
      found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(pair, exponent), exponent);
    }
  return found != 0;
}

// c[kBlocks * 16][32] (+)= a * b: b is two packed column blocks of `steps` tiles each. Tiles 0-3 sum, 4-5 a, 6-7 b.
template <int kBlocks, bool kAccumulate>
static inline __attribute__((always_inline)) void multiply(const uint16_t* a, int a_stride, const uint16_t* b,
                                                           int b_block, float* c, int c_stride, int steps) {
  float* c1 = c + kTileRows * c_stride;
  if (kAccumulate) {
    _tile_loadd(0, c, c_stride * 4);
    _tile_loadd(1, c + kTileRows, c_stride * 4);
    if (kBlocks == 2) _tile_loadd(2, c1, c_stride * 4);
    if (kBlocks == 2) _tile_loadd(3, c1 + kTileRows, c_stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kBlocks == 2) _tile_zero(2);
    if (kBlocks == 2) _tile_zero(3);
  }
  for (int k = 0; k < steps; ++k) {
    _tile_loadd(4, a + k * kTileDepth, a_stride * 2);
    _tile_loadd(6, b + k * kTileDepth * kTileRows, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + b_block + k * kTileDepth * kTileRows, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
    if (kBlocks == 2) {
      _tile_loadd(5, a + kTileRows * a_stride + k * kTileDepth, a_stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + kTileRows, c_stride * 4);
  if (kBlocks == 2) _tile_stored(2, c1, c_stride * 4);
  if (kBlocks == 2) _tile_stored(3, c1 + kTileRows, c_stride * 4);
}

// Rows [row, row + 16) or, where there are as many, [row, row + 32) of a task.
struct Block {
  int row;
  bool both;

  int rows() const { return both ? kRowBlock : kTileRows; }
  int last() const { return row + rows() - 1; }
};

static void score_block(const AmxScratch& s, const Block& block, int tokens) {
  const uint16_t* a = s.query + block.row * kHeadSize;
  for (int c = 0; c < tokens; c += 2 * kSlotTokens) {
    const uint16_t* b = s.keys + c / kSlotTokens * kSlotElements;
    if (block.both) multiply<2, false>(a, kHeadSize, b, kSlotElements, s.scores + c, kKeysPerStep, kKeySteps);
    else multiply<1, false>(a, kHeadSize, b, kSlotElements, s.scores + c, kKeysPerStep, kKeySteps);
  }
}

static inline float widened(uint16_t element) {
  const uint32_t bits = static_cast<uint32_t>(element) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The sum of one row, token by token, for steps whose hidden tokens hold infinities or NaNs.
static void add_values_of_row(const AmxScratch& s, const Block& block, int row, int visible, bool exact) {
  float* sums = s.sums + row * kHeadSize;
  for (int d = 0; d < kHeadSize / kTileRows; ++d) {
    Vec sum = load(sums + d * kTileRows);
    for (int t = 0; t < visible; ++t) {
      const __m512i pair = _mm512_loadu_si512(s.values + d * kStripeElements + (t & ~1) * kTileRows);
      const __m512i bits = t % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32(0xffff0000)) : _mm512_slli_epi32(pair, 16);
      const int at = (row - block.row) * kKeysPerStep + t;
      const float w = widened(s.weights[at]) + (exact ? widened(s.rests[at]) : 0.0f);
      sum = multiply_add(broadcast(w), _mm512_castsi512_ps(bits), sum);
    }
    store(sums + d * kTileRows, sum);
  }
}

static void add_weighted(const AmxScratch& s, const Block& block, const uint16_t* weights, int tokens) {
  const int steps = round_up(tokens, kTileDepth) / kTileDepth;
  for (int d = 0; d < kHeadSize; d += 2 * kTileRows) {
    const uint16_t* b = s.values + d / kTileRows * kStripeElements;
    float* to = s.sums + block.row * kHeadSize + d;
    if (block.both) multiply<2, true>(weights, kKeysPerStep, b, kStripeElements, to, kHeadSize, steps);
    else multiply<1, true>(weights, kKeysPerStep, b, kStripeElements, to, kHeadSize, steps);
  }
}

// Whether rows must be summed one by one: hidden from one of them lies what zero weights don't hide. Where weights are
// exact, a visible infinity needs it too: their two parts may differ in sign.
static bool needs_rows_alone(const AmxScratch& s, const Rows& rows, int first_token, int tokens) {
  const int hidden_from = rows.visible(0, first_token);
  const int suspect = first_token < kExactTokens || hidden_from < 0 ? 0 : hidden_from;
  return suspect < tokens && has_nonfinite(s.values, suspect, tokens);
}

static void load_queries(const Call& call, const Task& task, const Rows& rows, const AmxScratch& s) {
  const uint16_t* query = static_cast<const uint16_t*>(call.query) +
                          static_cast<int64_t>(task.kv_head) * rows.group * call.query_head_stride;
  const int64_t first = call.query_start[task.sequence] + task.first_query;
  std::memset(s.query, 0, sizeof(uint16_t) * rows.padded * kHeadSize);
  for (int r = 0; r < rows.count; ++r)
    std::memcpy(s.query + r * kHeadSize,
                query + (first + r / rows.group) * call.query_token_stride + (r % rows.group) * call.query_head_stride,
                sizeof(uint16_t) * kHeadSize);
}

static void weigh_block(const Call& call, const AmxScratch& s, const Rows& rows, const Block& block, int first_token,
                        int tokens) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const bool exact = first_token < kExactTokens;
  for (int i = 0; i < block.rows(); ++i) {
    const int row = block.row + i;
    uint16_t *weights = s.weights + i * kKeysPerStep, *rests = s.rests + i * kKeysPerStep;
    const auto put = [weights, rests, exact](int at, Vec w) {
      store_elements(weights + at, w);
      if (exact) store_elements(rests + at, w - load_elements(weights + at));
    };
    weigh(s.scores + i * kKeysPerStep, put, smaller(tokens, rows.visible(row, first_token)),
          round_up(tokens, kTileDepth), s.sums + row * kHeadSize, s.maxima[row], s.totals[row], call.scale * kLog2E);
  }
}

static void attend_block(const Call& call, const AmxScratch& s, const Rows& rows, const Block& block, int first_token,
                         int tokens, bool rows_alone) {
  const int depth = smaller(tokens, rows.visible(block.last(), first_token));
  if (depth <= 0) return;
  const bool exact = first_token < kExactTokens;
  score_block(s, block, depth);
  weigh_block(call, s, rows, block, first_token, tokens);
  if (rows_alone) {
    for (int r = block.row; r <= block.last() && r < rows.count; ++r)
      add_values_of_row(s, block, r, smaller(tokens, rows.visible(r, first_token)), exact);
    return;
  }
  add_weighted(s, block, s.weights, depth);
  if (exact) add_weighted(s, block, s.rests, depth);
}

static void run_amx(const Call& call, const Task& task, void* workspace) {
  if (run_decode<uint16_t>(call, task, workspace)) return;
  const Rows rows = rows_of(call, task, kTileRows);
  const AmxScratch s = lay_out(workspace, rows.padded);
  const PagedTile<uint16_t> tile{call, call.block_table + task.sequence * call.table_stride, task.kv_head};
  load_queries(call, task, rows, s);
  std::memset(s.sums, 0, sizeof(float) * rows.padded * kHeadSize);
  for (int r = 0; r < rows.padded; ++r) {
    s.maxima[r] = kMinusInfinity;
    s.totals[r] = 0.0f;
  }
  configure_tiles();
  for (int first = task.key_begin; first < task.key_end; first += kKeysPerStep) {
    const int tokens = smaller(kKeysPerStep, task.key_end - first);
    pack_keys(tile, first, round_up(tokens, kSlotTokens) / kSlotTokens, s.keys);
    pack_values(tile, first, tokens, s.values);
    const bool rows_alone = needs_rows_alone(s, rows, first, tokens);
    for (int r = 0; r < rows.padded; r += kRowBlock)
      attend_block(call, s, rows, {r, r + kTileRows < rows.padded}, first, tokens, rows_alone);
  }
  _tile_release();
  store_rows<uint16_t>(call, task, rows, s.sums, s.maxima, s.totals);
}

}  // namespace

namespace paceline {

const Level kAmxLevel = {"amx", 768, amx_workspace_bytes, {nullptr, run_amx}};

}  // namespace paceline

// bfloat16 with AMX tiles: products and sums of tiles of 16 x 32 by 32 x 16, softmax with AVX512.
#include "vector_avx512.h"

#include "rows.h"

namespace {

constexpr int kTileRows = 16;     // rows of a hardware tile
constexpr int kTileDepth = 32;    // bfloat16 elements that one product consumes
constexpr int kTileBytes = 64;    // a row of a hardware tile
constexpr int kKeySteps = kHeadSize / kTileDepth;
constexpr int kSlotElements = kHeadSize * kSlotTokens;      // a packed slot of keys
constexpr int kStripeElements = kTileTokens * kTileRows;    // 16 columns of packed values
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
  uint16_t* query;    // [rows][256]
  float* sums;        // [rows][256]
  float* scores;      // [rows][128]
  uint16_t* weights;  // [rows][128]
  uint16_t* rests;    // [rows][128] what rounding took from the weights
  uint16_t* packed;   // one tile of keys, then of values
  float* maxima;      // [rows]
  float* totals;      // [rows]
};

static size_t amx_workspace_bytes(int32_t rows) {
  const size_t padded = round_up(rows, kTileRows);
  return padded * (kHeadSize * 6 + kTileTokens * 8 + 8) + kTileTokens * kHeadSize * 2 + kCacheLine;
}

static AmxScratch lay_out(void* workspace, int rows) {
  AmxScratch s;
  uint16_t* p = static_cast<uint16_t*>(workspace);
  s.packed = p;
  s.query = s.packed + kTileTokens * kHeadSize;
  s.weights = s.query + static_cast<size_t>(rows) * kHeadSize;
  s.rests = s.weights + static_cast<size_t>(rows) * kTileTokens;
  s.sums = reinterpret_cast<float*>(s.rests + static_cast<size_t>(rows) * kTileTokens);
  s.scores = s.sums + static_cast<size_t>(rows) * kHeadSize;
  s.maxima = s.scores + static_cast<size_t>(rows) * kTileTokens;
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

static void score_tile(const AmxScratch& s, const Rows& rows, int first_token, int tokens) {
  for (int c = 0; c < tokens; c += 2 * kSlotTokens) {
    const uint16_t* b = s.packed + c / kSlotTokens * kSlotElements;
    for (int r = 0; r < rows.padded; r += 2 * kTileRows) {
      const bool both = r + kTileRows < rows.padded;
      if (rows.visible(r + (both ? 2 : 1) * kTileRows - 1, first_token) <= c) continue;
      const uint16_t* a = s.query + r * kHeadSize;
      float* to = s.scores + r * kTileTokens + c;
      if (both) multiply<2, false>(a, kHeadSize, b, kSlotElements, to, kTileTokens, kKeySteps);
      else multiply<1, false>(a, kHeadSize, b, kSlotElements, to, kTileTokens, kKeySteps);
    }
  }
}

static inline float widened(uint16_t element) {
  const uint32_t bits = static_cast<uint32_t>(element) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The sum of one row, token by token, for tiles whose hidden tokens hold infinities or NaNs.
static void add_values_of_row(const AmxScratch& s, int row, int visible, bool exact) {
  for (int d = 0; d < kHeadSize / kTileRows; ++d) {
    Vec sum = load(s.sums + row * kHeadSize + d * kTileRows);
    for (int t = 0; t < visible; ++t) {
      const __m512i pair = _mm512_loadu_si512(s.packed + d * kStripeElements + (t & ~1) * kTileRows);
      const __m512i bits = t % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32(0xffff0000)) : _mm512_slli_epi32(pair, 16);
      const int at = row * kTileTokens + t;
      const float w = widened(s.weights[at]) + (exact ? widened(s.rests[at]) : 0.0f);
      sum = multiply_add(broadcast(w), _mm512_castsi512_ps(bits), sum);
    }
    store(s.sums + row * kHeadSize + d * kTileRows, sum);
  }
}

static void add_values(const AmxScratch& s, const Rows& rows, int first_token, int tokens) {
  const int hidden_from = rows.visible(0, first_token);
  const bool exact = first_token < kExactTokens;
  // Where weights are exact, a visible infinity needs rows one by one too: their two parts may differ in sign.
  const int suspect = exact || hidden_from < 0 ? 0 : hidden_from;
  if (suspect < tokens && has_nonfinite(s.packed, suspect, tokens)) {
    for (int r = 0; r < rows.count; ++r) add_values_of_row(s, r, smaller(tokens, rows.visible(r, first_token)), exact);
    return;
  }
  for (int d = 0; d < kHeadSize / kTileRows; d += 2) {
    const uint16_t* b = s.packed + d * kStripeElements;
    for (int r = 0; r < rows.padded; r += 2 * kTileRows) {
      const bool both = r + kTileRows < rows.padded;
      const int depth = smaller(tokens, rows.visible(r + (both ? 2 : 1) * kTileRows - 1, first_token));
      if (depth <= 0) continue;
      const int steps = round_up(depth, kTileDepth) / kTileDepth;
      const uint16_t* a = s.weights + r * kTileTokens;
      float* to = s.sums + r * kHeadSize + d * kTileRows;
      const uint16_t* rest = s.rests + r * kTileTokens;
      if (both) multiply<2, true>(a, kTileTokens, b, kStripeElements, to, kHeadSize, steps);
      else multiply<1, true>(a, kTileTokens, b, kStripeElements, to, kHeadSize, steps);
      if (exact && both) multiply<2, true>(rest, kTileTokens, b, kStripeElements, to, kHeadSize, steps);
      if (exact && !both) multiply<1, true>(rest, kTileTokens, b, kStripeElements, to, kHeadSize, steps);
    }
  }
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

static void weigh_rows(const Call& call, const AmxScratch& s, const Rows& rows, int first_token, int tokens) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const bool exact = first_token < kExactTokens;
  for (int r = 0; r < rows.padded; ++r) {
    uint16_t *weights = s.weights + r * kTileTokens, *rests = s.rests + r * kTileTokens;
    const auto put = [weights, rests, exact](int i, Vec w) {
      store_elements(weights + i, w);
      if (exact) store_elements(rests + i, w - load_elements(weights + i));
    };
    weigh(s.scores + r * kTileTokens, put, smaller(tokens, rows.visible(r, first_token)), round_up(tokens, kTileDepth),
          s.sums + r * kHeadSize, s.maxima[r], s.totals[r], call.scale * kLog2E);
  }
}

static void run_amx(const Call& call, const Task& task, void* workspace) {
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
  for (int first = task.key_begin; first < task.key_end; first += kTileTokens) {
    const int tokens = smaller(kTileTokens, task.key_end - first);
    pack_keys(tile, first, round_up(tokens, kSlotTokens) / kSlotTokens, s.packed);
    score_tile(s, rows, first, tokens);
    weigh_rows(call, s, rows, first, tokens);
    pack_values(tile, first, tokens, s.packed);
    add_values(s, rows, first, tokens);
  }
  _tile_release();
  store_rows<uint16_t>(call, task, rows, s.sums, s.maxima, s.totals);
}

}  // namespace

namespace paceline {

const Level kAmxLevel = {"amx", 384, amx_workspace_bytes, {nullptr, run_amx}};

}  // namespace paceline

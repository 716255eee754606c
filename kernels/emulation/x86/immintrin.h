// The AVX512 and AMX intrinsics that the CPU levels use, for processors that lack them: the levels' own source, compiled
// with this header in place of the compiler's, runs with AVX2 and FMA. Lane by lane and tile by tile as Intel's manual
// describes them (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define EMULATED static inline __attribute__((always_inline))

namespace emulated {

typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Integers __attribute__((vector_size(32)));
typedef uint32_t Naturals __attribute__((vector_size(32)));
typedef uint16_t Shorts __attribute__((vector_size(16)));

}  // namespace emulated

// Vectors of 512 bits are pairs of those that AVX2 holds in registers.
struct __m512 { emulated::Floats low, high; };
struct __m512i { emulated::Integers low, high; };
typedef emulated::Integers __m256i;
typedef uint32_t __mmask32;
typedef uint16_t __mmask16;

EMULATED __m512 operator+(__m512 a, __m512 b) { return {a.low + b.low, a.high + b.high}; }
EMULATED __m512 operator-(__m512 a, __m512 b) { return {a.low - b.low, a.high - b.high}; }
EMULATED __m512 operator*(__m512 a, __m512 b) { return {a.low * b.low, a.high * b.high}; }

namespace emulated {

template <class To, class From>
EMULATED To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
EMULATED T load(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// All ones in the eight lanes from `first` on whose bits are set.
EMULATED Integers lanes_of(__mmask16 mask, int first) {
  const Integers bit = {1, 2, 4, 8, 16, 32, 64, 128};
  return ((mask >> first) & bit) != 0;
}

EMULATED Integers choose(Integers mask, Integers yes, Integers no) { return (mask & yes) | (~mask & no); }

// A bfloat16 as AMX reads it: a denormal counts as zero.
EMULATED float read_bfloat16(uint16_t element) {
  const uint32_t kept = element & 0x7f80 ? element : element & 0x8000;
  return bits<float>(kept << 16);
}

EMULATED float flush(float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }

}  // namespace emulated

#define _MM_FROUND_TO_NEG_INF 0x01
#define _MM_FROUND_NO_EXC 0x08
#define _CMP_UNORD_Q 0x03
#define _CMP_NLT_UQ 0x15

EMULATED __m256i _mm256_loadu_si256(const __m256i* p) { return emulated::load<__m256i>(p); }
EMULATED void _mm256_storeu_si256(__m256i* p, __m256i v) { std::memcpy(p, &v, sizeof v); }
EMULATED __m512 _mm512_loadu_ps(const void* p) {
  return {emulated::load<emulated::Floats>(p), emulated::load<emulated::Floats>(static_cast<const char*>(p) + 32)};
}
EMULATED void _mm512_storeu_ps(void* p, __m512 v) {
  std::memcpy(p, &v.low, 32);
  std::memcpy(static_cast<char*>(p) + 32, &v.high, 32);
}
EMULATED __m512i _mm512_loadu_si512(const void* p) {
  return {emulated::load<emulated::Integers>(p), emulated::load<emulated::Integers>(static_cast<const char*>(p) + 32)};
}
EMULATED void _mm512_storeu_si512(void* p, __m512i v) {
  std::memcpy(p, &v.low, 32);
  std::memcpy(static_cast<char*>(p) + 32, &v.high, 32);
}

EMULATED __m512 _mm512_set1_ps(float x) {
  const emulated::Floats v = {x, x, x, x, x, x, x, x};
  return {v, v};
}
EMULATED __m512i _mm512_set1_epi32(int x) {
  const emulated::Integers v = {x, x, x, x, x, x, x, x};
  return {v, v};
}
EMULATED __m512i _mm512_set1_epi16(int16_t x) {
  return _mm512_set1_epi32(static_cast<int>(static_cast<uint16_t>(x) * 0x10001u));
}
EMULATED __m512i _mm512_castps_si512(__m512 v) {
  return {reinterpret_cast<emulated::Integers>(v.low), reinterpret_cast<emulated::Integers>(v.high)};
}
EMULATED __m512 _mm512_castsi512_ps(__m512i v) {
  return {reinterpret_cast<emulated::Floats>(v.low), reinterpret_cast<emulated::Floats>(v.high)};
}

EMULATED __m512i _mm512_add_epi32(__m512i a, __m512i b) { return {a.low + b.low, a.high + b.high}; }
EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return {a.low & b.low, a.high & b.high}; }
EMULATED __m512i _mm512_or_si512(__m512i a, __m512i b) { return {a.low | b.low, a.high | b.high}; }
EMULATED __m512i _mm512_slli_epi32(__m512i v, unsigned n) {
  using emulated::Integers, emulated::Naturals;
  return {reinterpret_cast<Integers>(reinterpret_cast<Naturals>(v.low) << n),
          reinterpret_cast<Integers>(reinterpret_cast<Naturals>(v.high) << n)};
}
EMULATED __m512i _mm512_srli_epi32(__m512i v, unsigned n) {
  using emulated::Integers, emulated::Naturals;
  return {reinterpret_cast<Integers>(reinterpret_cast<Naturals>(v.low) >> n),
          reinterpret_cast<Integers>(reinterpret_cast<Naturals>(v.high) >> n)};
}
EMULATED __m512i _mm512_cvtepu16_epi32(__m256i v) {
  struct { emulated::Shorts low, high; } from = emulated::bits<decltype(from)>(v);
  return {__builtin_convertvector(from.low, emulated::Integers), __builtin_convertvector(from.high, emulated::Integers)};
}
EMULATED __m256i _mm512_cvtepi32_epi16(__m512i v) {
  struct { emulated::Shorts low, high; } to = {__builtin_convertvector(v.low, emulated::Shorts),
                                               __builtin_convertvector(v.high, emulated::Shorts)};
  return emulated::bits<__m256i>(to);
}

EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return {__builtin_ia32_vfmaddps256(a.low, b.low, c.low), __builtin_ia32_vfmaddps256(a.high, b.high, c.high)};
}
EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b) {  // b where either is NaN
  return {a.low > b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}
EMULATED __m512i _mm512_mask_mov_epi32(__m512i otherwise, __mmask16 mask, __m512i v) {
  return {emulated::choose(emulated::lanes_of(mask, 0), v.low, otherwise.low),
          emulated::choose(emulated::lanes_of(mask, 8), v.high, otherwise.high)};
}
EMULATED __m512 _mm512_mask_mov_ps(__m512 otherwise, __mmask16 mask, __m512 v) {
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(_mm512_castps_si512(otherwise), mask, _mm512_castps_si512(v)));
}

// What takes its lanes one by one is kept out of line: the levels use it thousands of times in their unrolled loops.
#define BY_LANES [[maybe_unused]] static __attribute__((noinline))

BY_LANES __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  if (predicate != _CMP_UNORD_Q && predicate != _CMP_NLT_UQ) std::abort();
  float left[16], right[16];
  _mm512_storeu_ps(left, a);
  _mm512_storeu_ps(right, b);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool unordered = std::isnan(left[i]) || std::isnan(right[i]);
    mask |= static_cast<unsigned>(unordered || (predicate == _CMP_NLT_UQ && left[i] >= right[i])) << i;
  }
  return static_cast<__mmask16>(mask);
}
BY_LANES __mmask32 _mm512_cmpeq_epi16_mask(__m512i a, __m512i b) {
  uint16_t left[32], right[32];
  _mm512_storeu_si512(left, a);
  _mm512_storeu_si512(right, b);
  __mmask32 mask = 0;
  for (int i = 0; i < 32; ++i) mask |= static_cast<__mmask32>(left[i] == right[i]) << i;
  return mask;
}
BY_LANES __m512 _mm512_reduce_ps(__m512 x, int control) {  // what rounding to an integer takes away; 0 of infinities
  if (control != (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)) std::abort();
  float lanes[16];
  _mm512_storeu_ps(lanes, x);
  for (float& v : lanes) v = std::isinf(v) ? 0.0f : v - std::floor(v);
  return _mm512_loadu_ps(lanes);
}
BY_LANES __m512 _mm512_maskz_scalef_ps(__mmask16 mask, __m512 v, __m512 x) {  // v * 2^floor(x)
  float lanes[16], exponents[16];
  _mm512_storeu_ps(lanes, v);
  _mm512_storeu_ps(exponents, x);
  for (int i = 0; i < 16; ++i) {
    const float exponent = exponents[i];
    if (!(mask >> i & 1)) lanes[i] = 0.0f;
    else if (std::isnan(exponent)) lanes[i] = exponent;
    else lanes[i] = std::ldexp(lanes[i], static_cast<int>(std::fmin(std::fmax(std::floor(exponent), -1000.0f), 1000.0f)));
  }
  return _mm512_loadu_ps(lanes);
}
BY_LANES float _mm512_reduce_add_ps(__m512 v) {  // by halves, as compilers do it
  float lanes[16];
  _mm512_storeu_ps(lanes, v);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}
BY_LANES float _mm512_reduce_max_ps(__m512 v) {
  float lanes[16];
  _mm512_storeu_ps(lanes, v);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}
BY_LANES __m256i _mm512_cvtneps_pbh(__m512 v) {  // to the nearest even; denormals become zero, NaNs quiet
  float lanes[16];
  uint16_t r[16];
  _mm512_storeu_ps(lanes, v);
  for (int i = 0; i < 16; ++i) {
    const uint32_t element = emulated::bits<uint32_t>(emulated::flush(lanes[i]));
    if (std::isnan(lanes[i])) r[i] = static_cast<uint16_t>(element >> 16 | 0x40);
    else r[i] = static_cast<uint16_t>((element + 0x7fff + (element >> 16 & 1)) >> 16);
  }
  return emulated::load<__m256i>(r);
}

// The tiles of a thread. Using one that was not configured ends the program, as it faults on the processor.
namespace emulated {

struct Tile {
  int rows, row_bytes;
  alignas(64) uint8_t bytes[16][64];
};

static thread_local Tile tiles[8];
static thread_local bool configured = false;

static inline Tile& tile(int index) {
  if (!configured || tiles[index].rows == 0 || tiles[index].row_bytes == 0) std::abort();
  return tiles[index];
}

}  // namespace emulated

BY_LANES void _tile_loadconfig(const void* config) {
  const uint8_t* from = static_cast<const uint8_t*>(config);
  if (from[0] != 1) std::abort();
  for (int t = 0; t < 8; ++t) {
    emulated::Tile& tile = emulated::tiles[t];
    tile.row_bytes = emulated::load<uint16_t>(from + 16 + 2 * t);
    tile.rows = from[48 + t];
    if (tile.rows > 16 || tile.row_bytes > 64) std::abort();
    std::memset(tile.bytes, 0, sizeof tile.bytes);
  }
  emulated::configured = true;
}
BY_LANES void _tile_release() { emulated::configured = false; }
BY_LANES void _tile_zero(int index) {
  emulated::Tile& tile = emulated::tile(index);
  std::memset(tile.bytes, 0, sizeof tile.bytes);
}
BY_LANES void _tile_loadd(int index, const void* from, long stride_bytes) {
  emulated::Tile& tile = emulated::tile(index);
  std::memset(tile.bytes, 0, sizeof tile.bytes);
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(tile.bytes[r], static_cast<const uint8_t*>(from) + r * stride_bytes, tile.row_bytes);
}
BY_LANES void _tile_stored(int index, void* to, long stride_bytes) {
  const emulated::Tile& tile = emulated::tile(index);
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(static_cast<uint8_t*>(to) + r * stride_bytes, tile.bytes[r], tile.row_bytes);
}
// sum[m][n] += a[m][2k] b[k][2n] + a[m][2k + 1] b[k][2n + 1]: even and odd products are summed apart over k, then joined.
BY_LANES void _tile_dpbf16ps(int sum_index, int a_index, int b_index) {
  emulated::Tile& sum = emulated::tile(sum_index);
  const emulated::Tile &a = emulated::tile(a_index), &b = emulated::tile(b_index);
  const int depth = a.row_bytes / 4;
  if (a.rows != sum.rows || b.rows != depth || b.row_bytes != sum.row_bytes) std::abort();
  const auto element = [](const emulated::Tile& from, int row, int column, int odd) {
    return emulated::read_bfloat16(emulated::load<uint16_t>(from.bytes[row] + 4 * column + 2 * odd));
  };
  float wide[2][16][16];  // b, widened once
  for (int odd = 0; odd < 2; ++odd)
    for (int k = 0; k < depth; ++k)
      for (int n = 0; n < 16; ++n) wide[odd][k][n] = element(b, k, n, odd);
  for (int m = 0; m < sum.rows; ++m) {
    __m512 parts[2] = {_mm512_set1_ps(0.0f), _mm512_set1_ps(0.0f)};
    for (int k = 0; k < depth; ++k)
      for (int odd = 0; odd < 2; ++odd)
        parts[odd] = _mm512_fmadd_ps(_mm512_set1_ps(element(a, m, k, odd)), _mm512_loadu_ps(wide[odd][k]), parts[odd]);
    float joined[16], sums[16] = {};
    _mm512_storeu_ps(joined, parts[0] + parts[1]);
    std::memcpy(sums, sum.bytes[m], sum.row_bytes);
    for (int n = 0; n < 16; ++n) sums[n] = emulated::flush(sums[n] + emulated::flush(joined[n]));
    std::memcpy(sum.bytes[m], sums, sum.row_bytes);
  }
}

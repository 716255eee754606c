// Eight floats with AVX2 and FMA.
#pragma once
#include <immintrin.h>
#include <cstdint>

namespace {

using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kPanelVectors = 2;  // vectors in a panel of the packed operand
constexpr int kBlockRows = 6;     // rows of the register block: 12 sums in 16 registers
constexpr int kBandRows = 24;     // rows that all panels pass by before the next ones: a band's sums stay in L1 or L2

static inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
static inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
static inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vec maximum(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b where either is NaN
static inline Vec lane_below(int32_t n, Vec v, Vec otherwise) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(otherwise, v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
}
static inline Vec fraction(Vec x) { return _mm256_sub_ps(x, _mm256_floor_ps(x)); }
static inline Vec scale_by_power(Vec v, Vec x) {  // v * 2^floor(x) for x of at most 0, zero for x below -126
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_floor_ps(x)), _mm256_set1_epi32(127));
  const Vec scaled = _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return _mm256_andnot_ps(_mm256_cmp_ps(x, broadcast(-126.0f), _CMP_LT_OQ), scaled);
}
static inline float sum_lanes(Vec v) {
  float a[kLanes];
  store(a, v);
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}
static inline float max_lanes(Vec v) {
  float a[kLanes];
  store(a, v);
  float m = a[0];
  for (int i = 1; i < kLanes; ++i) m = a[i] > m ? a[i] : m;
  return m;
}
static inline Vec load_elements(const float* p) { return load(p); }
static inline Vec load_elements(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline void store_elements(float* p, Vec v) { store(p, v); }
static inline void store_elements(uint16_t* p, Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(is_nan));
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

}  // namespace

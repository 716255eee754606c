// Sixteen floats with AVX512F.
#pragma once
#include <immintrin.h>
#include <cstdint>

namespace {

using Vec = __m512;
constexpr int kLanes = 16;
constexpr int kPanelVectors = 2;  // vectors in a panel of the packed operand
constexpr int kBlockRows = 12;    // rows of the register block: 24 sums in 32 registers
constexpr int kBandRows = 384;    // rows that all panels pass by before the next ones: all of most tasks'

static inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
static inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
static inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline Vec maximum(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN
static inline Vec lane_below(int32_t n, Vec v, Vec otherwise) {
  const __mmask16 mask = n >= kLanes ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
  return _mm512_mask_mov_ps(otherwise, mask, v);
}
static inline Vec fraction(Vec x) {  // x - floor(x)
  return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
static inline Vec scale_by_power(Vec v, Vec x) {  // v * 2^floor(x), zero for x below -126
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, broadcast(-126.0f), _CMP_NLT_UQ), v, x);
}
static inline float sum_lanes(Vec v) { return _mm512_reduce_add_ps(v); }
static inline float max_lanes(Vec v) { return _mm512_reduce_max_ps(v); }
static inline Vec load_elements(const float* p) { return load(p); }
static inline Vec load_elements(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline void store_elements(float* p, Vec v) { store(p, v); }
static inline __m256i to_bfloat16(Vec v) {
#ifdef __AVX512BF16__
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
  return _mm512_cvtepi32_epi16(r);
#endif
}
static inline void store_elements(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bfloat16(v));
}

}  // namespace

// Four floats in the compiler's generic vector type: runs on any processor.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kPanelVectors = 4;  // vectors in a panel of the packed operand
constexpr int kBlockRows = 2;     // rows of the register block
constexpr int kBandRows = 192;    // rows that all panels pass by before the next ones: all of most tasks'

static inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
static inline Vec load(const float* p) { Vec v; std::memcpy(&v, p, sizeof v); return v; }
static inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
static inline Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
static inline Vec select(Mask m, Vec yes, Vec no) { return reinterpret_cast<Vec>((m & reinterpret_cast<Mask>(yes)) | (~m & reinterpret_cast<Mask>(no))); }
static inline Vec maximum(Vec a, Vec b) { return select(a > b, a, b); }  // b where either is NaN
static inline Vec lane_below(int32_t n, Vec v, Vec otherwise) { return select(Mask{0, 1, 2, 3} < n, v, otherwise); }
static inline Vec floor(Vec x) {  // for |x| < 2^22; NaN stays NaN
  const Vec magic = broadcast(12582912.0f), nearest = (x + magic) - magic;
  return nearest - select(nearest > x, broadcast(1.0f), broadcast(0.0f));
}
static inline Vec fraction(Vec x) { return x - floor(x); }
static inline Vec scale_by_power(Vec v, Vec x) {  // v * 2^floor(x) for x of at most 0, zero for x below -126
  const Vec whole = floor(maximum(broadcast(-126.0f), x));
  const Vec scaled = v * reinterpret_cast<Vec>((__builtin_convertvector(whole, Mask) + 127) << 23);
  return select(x < broadcast(-126.0f), broadcast(0.0f), scaled);
}
static inline float sum_lanes(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
static inline float max_lanes(Vec v) { float m = v[0]; for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m; return m; }
static inline Vec load_elements(const float* p) { return load(p); }
static inline Vec load_elements(const uint16_t* p) {
  uint16_t h[4]; std::memcpy(h, p, sizeof h);
  const Mask bits{h[0], h[1], h[2], h[3]};
  return reinterpret_cast<Vec>(bits << 16);
}
static inline void store_elements(float* p, Vec v) { store(p, v); }
static inline void store_elements(uint16_t* p, Vec v) {
  const Mask bits = reinterpret_cast<Mask>(v);
  const Mask rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;
  const Mask result = (v == v) ? rounded : Mask{0x7fc0, 0x7fc0, 0x7fc0, 0x7fc0};
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(result[i]);
}

}  // namespace

// Tensor core products (nvcuda::wmma) of 16 x 16 x 16 for the host: halves in, exact products, sums in fp32.
//
// The elements of a fragment are dealt to the lanes in a scrambled order: code that assumes an order of its own fails.
#pragma once
#include <type_traits>

#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

constexpr int kSide = 16, kPerLane = kSide * kSide / emulation::kWarpSize;

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M == kSide && N == kSide && K == kSide);
  static constexpr int num_elements = kPerLane;
  T x[kPerLane];
};

inline int place(int lane, int i) { return (lane * kPerLane + i) * 37 % (kSide * kSide); }
inline int lane() { return static_cast<int>(emulation::Block::running().thread() % emulation::kWarpSize); }

template <class T>
inline void check(const T* pointer, unsigned stride) {
  emulation::require_aligned(pointer, 32, "a fragment's address is not a multiple of 32 bytes");
  if (stride * sizeof(T) % 16) emulation::fail("a fragment's stride is not a multiple of 16 bytes", lane());
}

template <class Use, class T, class Layout>
inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* from, unsigned stride) {
  check(from, stride);
  constexpr bool kByRow = std::is_same_v<Layout, row_major>;
  for (int i = 0; i < kPerLane; ++i) {
    const int at = place(lane(), i), row = at / kSide, column = at % kSide;
    f.x[i] = kByRow ? from[row * stride + column] : from[column * stride + row];
  }
}

template <class T>
inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, T>& f, const T* from, unsigned stride, layout_t layout) {
  check(from, stride);
  for (int i = 0; i < kPerLane; ++i) {
    const int at = place(lane(), i), row = at / kSide, column = at % kSide;
    f.x[i] = layout == mem_row_major ? from[row * stride + column] : from[column * stride + row];
  }
}

template <class T>
inline void store_matrix_sync(T* to, const fragment<accumulator, 16, 16, 16, T>& f, unsigned stride, layout_t layout) {
  check(to, stride);
  for (int i = 0; i < kPerLane; ++i) {
    const int at = place(lane(), i), row = at / kSide, column = at % kSide;
    (layout == mem_row_major ? to[row * stride + column] : to[column * stride + row]) = f.x[i];
  }
}

template <class T>
inline void fill_fragment(fragment<accumulator, 16, 16, 16, T>& f, T value) {
  for (T& element : f.x) element = value;
}

struct Operands {
  float* sum;
  const half *a, *b;
  const float* start;
};

// The last lane to come computes for all.
inline void multiply(void* const* lanes) {
  static float a[kSide * kSide], b[kSide * kSide], sum[kSide * kSide];
  for (int l = 0; l < static_cast<int>(emulation::kWarpSize); ++l) {
    const Operands& o = *static_cast<const Operands*>(lanes[l]);
    for (int i = 0; i < kPerLane; ++i) {
      const int at = place(l, i);
      a[at] = o.a[i];
      b[at] = o.b[i];
      sum[at] = o.start[i];
    }
  }
  for (int i = 0; i < kSide; ++i)
    for (int k = 0; k < kSide; ++k)
      for (int j = 0; j < kSide; ++j) sum[i * kSide + j] += a[i * kSide + k] * b[k * kSide + j];
  for (int l = 0; l < static_cast<int>(emulation::kWarpSize); ++l)
    for (int i = 0; i < kPerLane; ++i) static_cast<const Operands*>(lanes[l])->sum[i] = sum[place(l, i)];
}

template <class LayoutA, class LayoutB>
inline void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, half, LayoutA>& a,
                     const fragment<matrix_b, 16, 16, 16, half, LayoutB>& b,
                     const fragment<accumulator, 16, 16, 16, float>& c) {
  Operands own{d.x, a.x, b.x, c.x};
  emulation::Block::running().exchange(&own, multiply);
}

}  // namespace nvcuda::wmma

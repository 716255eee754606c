// The part of CUDA C++ that the kernels use, for the host: built-in names, half precision, barriers and shuffles.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "fibers.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define PACELINE_SHARED(name) unsigned char* name = emulation::shared_memory

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emulation {

inline unsigned char* shared_memory = nullptr;
inline Dim3 block_index, grid_size;

template <class T>
inline void require_aligned(const T* pointer, size_t bytes, const char* what) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes) fail(what, Block::running().thread());
}

}  // namespace emulation

#define threadIdx (Dim3{emulation::Block::running().thread(), 0, 0})
#define blockIdx emulation::block_index
#define gridDim emulation::grid_size

using half = _Float16;
struct half2 { half x, y; };
struct float2 { float x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline half __float2half_rn(float v) { return static_cast<half>(v); }
inline float __half2float(half v) { return static_cast<float>(v); }
inline half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float __int_as_float(int bits) {
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}
using std::exp2f;
using std::fmaxf;
using std::min;

constexpr int kPlainBarrier = 1, kVotingBarrier = 2;

inline void __syncthreads() { emulation::Block::running().wait_for_block(kPlainBarrier); }
inline int __syncthreads_or(int vote) {
  emulation::Block& block = emulation::Block::running();
  block.vote |= vote != 0;
  block.wait_for_block(kVotingBarrier);
  return block.vote_result;
}
inline float __shfl_xor_sync(unsigned mask, float value, int lane_mask) {
  emulation::Block& block = emulation::Block::running();
  if (mask != 0xffffffffu) emulation::fail("shuffles a part of its warp, which is not emulated", block.thread());
  void* bits = nullptr;
  std::memcpy(&bits, &value, sizeof value);
  void* const* lanes = block.exchange(bits);
  float other;
  std::memcpy(&other, &lanes[(block.thread() % emulation::kWarpSize) ^ lane_mask], sizeof other);
  return other;
}

// How a tile of keys or values gets from its pages to shared memory: through registers, while another is worked on.
#pragma once
#include <cuda_fp16.h>

#include "layout.cuh"

namespace paceline {

constexpr int kVectorHalves = 8;  // halves of a 16-byte load: 32 lanes load one token

// The part of a sequence that a block works on.
struct Span {
  const int* table;
  int length;          // tokens of the sequence
  int first_position;  // position of the block's first query
  int rows;            // queries of the block
  int end;             // keys that its last query sees
};

// A warp's tokens of a tile, on their way from memory to shared memory.
struct Staged {
  uint4 part[kTokensPerWarp];
};

__device__ __forceinline__ void fetch(Staged& staged, const half* cache, long long block_stride, long long token_stride,
                                      const Span& span, int page_size, int first_token) {
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * kTokensPerWarp;
  const int token = first_token + own;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  if (token >= span.end) {
#pragma unroll
    for (int i = 0; i < kTokensPerWarp; ++i) staged.part[i] = zero;
    return;
  }
  const int page = token / page_size;
  const half* from = cache + span.table[page] * block_stride + (token - page * page_size) * token_stride;
#pragma unroll
  for (int i = 0; i < kTokensPerWarp; ++i)
    staged.part[i] = token + i < span.end
                         ? *reinterpret_cast<const uint4*>(from + i * token_stride + lane * kVectorHalves)
                         : zero;
}

__device__ __forceinline__ void put(const Staged& staged, half* tile) {
  const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * kTokensPerWarp;
#pragma unroll
  for (int i = 0; i < kTokensPerWarp; ++i)
    *reinterpret_cast<uint4*>(tile + (own + i) * kHeadStride + lane * kVectorHalves) = staged.part[i];
}

// Whether any of two packed halves is infinite or NaN.
__device__ __forceinline__ bool nonfinite(unsigned int two) {
  return (two & 0x7c00u) == 0x7c00u || (two & 0x7c000000u) == 0x7c000000u;
}

// Whether this thread's share of a tile holds an infinity or NaN of a token that is hidden from some row.
__device__ __forceinline__ bool hides_nonfinite(const Staged& staged, int first_token, int first_position) {
  const int own = first_token + threadIdx.x / 32 * kTokensPerWarp;
  bool found = false;
#pragma unroll
  for (int i = 0; i < kTokensPerWarp; ++i) {
    const uint4 v = staged.part[i];
    found |= own + i > first_position && (nonfinite(v.x) || nonfinite(v.y) || nonfinite(v.z) || nonfinite(v.w));
  }
  return found;
}

}  // namespace paceline

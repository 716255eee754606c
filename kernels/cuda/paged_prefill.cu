// Causal paged prefill attention for heads of 256 elements, fp16 cache, fp32 softmax and sums, on tensor cores (wmma).
//
// A block of 512 threads computes 32 queries of one head. It steps through the keys by tiles of eight (or four or two)
// 16-token slots; a slot never straddles a page whose size is a multiple of 16, which is all that is asked of a page.
// While a tile is worked on, the next one is on its way from memory in registers.
#include <cuda_fp16.h>
#include <mma.h>

#include "layout.cuh"
#include "staging.cuh"

#ifndef PACELINE_SHARED
#define PACELINE_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

namespace paceline {

using namespace nvcuda;

using RowFragment = wmma::fragment<wmma::matrix_a, kFragment, kFragment, kFragment, half, wmma::row_major>;
using KeyFragment = wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, half, wmma::col_major>;
using ValueFragment = wmma::fragment<wmma::matrix_b, kFragment, kFragment, kFragment, half, wmma::row_major>;
using SumFragment = wmma::fragment<wmma::accumulator, kFragment, kFragment, kFragment, float>;

constexpr int kSumsPerWarp = 2;           // fragments of results that a warp owns: 32 x 256 results by 16 warps
constexpr int kWarpsPerRowTile = kHeadSize / kFragment / kSumsPerWarp;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

struct Shared {
  half* query;      // [32][kHeadStride]
  half* cache;      // [kTileTokens][kHeadStride] keys, then values
  float* scores;    // [32][kScoreStride] over the keys
  half* weights;    // [32][kWeightStride]
  float* place;     // [16][16] the place of each element, by which a thread learns what its fragments hold
  float* shrink;    // [32] factor of a row's sums under its new maximum
  float* results;   // [32][kOutStride] over queries and values
};

__device__ __forceinline__ Shared lay_out(unsigned char* memory) {
  Shared s;
  s.query = reinterpret_cast<half*>(memory);
  s.cache = reinterpret_cast<half*>(memory + kCacheOffset);
  s.scores = reinterpret_cast<float*>(memory + kCacheOffset);
  s.weights = reinterpret_cast<half*>(memory + kWeightOffset);
  s.place = reinterpret_cast<float*>(memory + kPlaceOffset);
  s.shrink = reinterpret_cast<float*>(memory + kShrinkOffset);
  s.results = reinterpret_cast<float*>(memory);
  return s;
}

__device__ __forceinline__ void load_queries(const Arguments& a, const Shared& s, const half* query, int rows) {
  constexpr int kVectors = kHeadSize / kVectorHalves;
  for (int i = threadIdx.x; i < kTileRows * kVectors; i += kThreads) {
    const int row = i / kVectors, at = i % kVectors * kVectorHalves;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < rows) v = *reinterpret_cast<const uint4*>(query + row * a.query_token_stride + at);
    *reinterpret_cast<uint4*>(s.query + row * kHeadStride + at) = v;
  }
}

// Warp w computes the scores of one 16 x 16 part; warps beyond the parts have none.
__device__ __forceinline__ void multiply_keys(const Shared& s, SumFragment& scores) {
  const int warp = threadIdx.x / 32, row = warp % 2 * kFragment, column = warp / 2 * kFragment;
  wmma::fill_fragment(scores, 0.0f);
  if (column >= kTileTokens) return;
#pragma unroll 4
  for (int k = 0; k < kHeadSize; k += kFragment) {
    RowFragment a;
    KeyFragment b;
    wmma::load_matrix_sync(a, s.query + row * kHeadStride + k, kHeadStride);
    wmma::load_matrix_sync(b, s.cache + column * kHeadStride + k, kHeadStride);
    wmma::mma_sync(scores, a, b, scores);
  }
}

__device__ __forceinline__ void store_scores(const Shared& s, const SumFragment& scores) {
  const int warp = threadIdx.x / 32, row = warp % 2 * kFragment, column = warp / 2 * kFragment;
  if (column < kTileTokens)
    wmma::store_matrix_sync(s.scores + row * kScoreStride + column, scores, kScoreStride, wmma::mem_row_major);
}

__device__ __forceinline__ float row_maximum(float v) {
#pragma unroll
  for (int step = kLanesPerRow / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  return v;
}

__device__ __forceinline__ float row_sum(float v) {
#pragma unroll
  for (int step = kLanesPerRow / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

// Sixteen threads turn a row's scores into weights; each of them keeps the row's maximum and total. A hidden score is
// never read into either. A NaN score is passed over by the maximum and shows as a weight.
__device__ __forceinline__ void weigh(const Shared& s, int visible, float scale, float& maximum, float& total) {
  constexpr int kColumns = kTileTokens / kLanesPerRow;
  const int row = threadIdx.x / kLanesPerRow, lane = threadIdx.x % kLanesPerRow;
  float score[kColumns];
  float largest = minus_infinity();
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = lane + i * kLanesPerRow;
    score[i] = column < visible ? s.scores[row * kScoreStride + column] * scale : minus_infinity();
    largest = fmaxf(largest, score[i]);
  }
  const float now = fmaxf(maximum, row_maximum(largest));
  const float offset = now == minus_infinity() ? 0.0f : now;  // so that weights are zero, not NaN, until a score is finite
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = lane + i * kLanesPerRow;
    const half weight = __float2half_rn(column < visible ? exp2f(score[i] - offset) : 0.0f);
    s.weights[row * kWeightStride + column] = weight;
    sum += __half2float(weight);
  }
  const float shrink = exp2f(maximum - offset);
  total = total * shrink + row_sum(sum);
  maximum = now;
  if (lane == 0) s.shrink[row] = shrink;
}

__device__ __forceinline__ int sum_row() { return threadIdx.x / 32 / kWarpsPerRowTile * kFragment; }
__device__ __forceinline__ int sum_column(int f) {
  return (threadIdx.x / 32 % kWarpsPerRowTile * kSumsPerWarp + f) * kFragment;
}

__device__ __forceinline__ void shrink_sums(const Shared& s, SumFragment (&sums)[kSumsPerWarp], const SumFragment& place) {
#pragma unroll
  for (int i = 0; i < place.num_elements; ++i) {
    const float factor = s.shrink[sum_row() + static_cast<int>(place.x[i]) / kFragment];
#pragma unroll
    for (int f = 0; f < kSumsPerWarp; ++f) sums[f].x[i] *= factor;
  }
}

__device__ __forceinline__ void add_values(const Shared& s, SumFragment (&sums)[kSumsPerWarp], int tokens) {
#pragma unroll 2
  for (int k = 0; k < tokens; k += kFragment) {
    RowFragment a;
    wmma::load_matrix_sync(a, s.weights + sum_row() * kWeightStride + k, kWeightStride);
#pragma unroll
    for (int f = 0; f < kSumsPerWarp; ++f) {
      ValueFragment b;
      wmma::load_matrix_sync(b, s.cache + k * kHeadStride + sum_column(f), kHeadStride);
      wmma::mma_sync(sums[f], a, b, sums[f]);
    }
  }
}

// The same element by element over the visible tokens alone: zero times a hidden NaN would be NaN.
__device__ __forceinline__ void add_visible_values(const Shared& s, SumFragment (&sums)[kSumsPerWarp],
                                                const SumFragment& place, int first_visible) {
#pragma unroll
  for (int i = 0; i < place.num_elements; ++i) {
    const int at = static_cast<int>(place.x[i]), row = sum_row() + at / kFragment;
    const int visible = min(kTileTokens, first_visible + row);
#pragma unroll
    for (int f = 0; f < kSumsPerWarp; ++f) {
      float sum = sums[f].x[i];
#pragma unroll 1
      for (int t = 0; t < visible; ++t)
        sum += __half2float(s.weights[row * kWeightStride + t]) *
               __half2float(s.cache[t * kHeadStride + sum_column(f) + at % kFragment]);
      sums[f].x[i] = sum;
    }
  }
}

__device__ __forceinline__ void store_results(const Arguments& a, const Shared& s, half* out, int rows,
                                              const SumFragment (&sums)[kSumsPerWarp]) {
#pragma unroll
  for (int f = 0; f < kSumsPerWarp; ++f)
    wmma::store_matrix_sync(s.results + sum_row() * kOutStride + sum_column(f), sums[f], kOutStride, wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < rows * (kHeadSize / 2); i += kThreads) {
    const int row = i / (kHeadSize / 2), at = i % (kHeadSize / 2) * 2;
    const float inverse = s.shrink[row];
    const float2 v = *reinterpret_cast<const float2*>(s.results + row * kOutStride + at);
    *reinterpret_cast<half2*>(out + row * a.out_token_stride + at) = __floats2half2_rn(v.x * inverse, v.y * inverse);
  }
}

}  // namespace paceline

extern "C" __global__ void __launch_bounds__(paceline::kThreads, 1) paceline_paged_prefill(const paceline::Arguments a) {
  using namespace paceline;
  PACELINE_SHARED(memory);
  const Shared s = lay_out(memory);
  const int sequence = blockIdx.y, head = blockIdx.z, kv_head = head / a.group;
  const int first_row = a.query_start[sequence], num_rows = a.query_start[sequence + 1] - first_row;
  const int first_query = (gridDim.x - 1 - blockIdx.x) * kTileRows;  // the longest contexts first
  if (first_query >= num_rows) return;

  Span span;
  span.table = a.block_table + sequence * a.table_stride;
  span.length = a.seq_lens[sequence];
  span.first_position = span.length - num_rows + first_query;
  span.rows = min(kTileRows, num_rows - first_query);
  span.end = span.first_position + span.rows;

  const half* key = static_cast<const half*>(a.key) + kv_head * a.key_head_stride;
  const half* value = static_cast<const half*>(a.value) + kv_head * a.value_head_stride;
  const long long first_token = first_row + first_query;
  load_queries(a, s, static_cast<const half*>(a.query) + first_token * a.query_token_stride + head * a.query_head_stride,
               span.rows);
  for (int i = threadIdx.x; i < kFragment * kFragment; i += kThreads) s.place[i] = static_cast<float>(i);
  Staged staged;
  fetch(staged, key, a.key_block_stride, a.key_token_stride, span, a.page_size, 0);
  __syncthreads();

  SumFragment place, sums[kSumsPerWarp];
  wmma::load_matrix_sync(place, s.place, kFragment, wmma::mem_row_major);
#pragma unroll
  for (int f = 0; f < kSumsPerWarp; ++f) wmma::fill_fragment(sums[f], 0.0f);
  const int softmax_row = min(static_cast<int>(threadIdx.x) / kLanesPerRow, span.rows - 1);
  const float scale = a.scale * 1.44269504088896340736f;
  float maximum = minus_infinity(), total = 0.0f;

  for (int tile = 0; tile < span.end; tile += kTileTokens) {
    put(staged, s.cache);
    __syncthreads();
    fetch(staged, value, a.value_block_stride, a.value_token_stride, span, a.page_size, tile);
    {
      SumFragment scores;
      multiply_keys(s, scores);
      __syncthreads();
      store_scores(s, scores);
    }
    __syncthreads();
    weigh(s, span.first_position + softmax_row + 1 - tile, scale, maximum, total);
    const int by_element = __syncthreads_or(hides_nonfinite(staged, tile, span.first_position));
    put(staged, s.cache);
    __syncthreads();
    fetch(staged, key, a.key_block_stride, a.key_token_stride, span, a.page_size, tile + kTileTokens);
    shrink_sums(s, sums, place);
    if (by_element) add_visible_values(s, sums, place, span.first_position + 1 - tile);
    else add_values(s, sums, min(kTileTokens, span.end - tile));
    __syncthreads();
  }

  if (threadIdx.x % kLanesPerRow == 0) s.shrink[threadIdx.x / kLanesPerRow] = 1.0f / total;
  store_results(a, s, static_cast<half*>(a.out) + first_token * a.out_token_stride + head * a.out_head_stride, span.rows,
                sums);
}

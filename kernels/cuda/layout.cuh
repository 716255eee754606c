// Sizes of the kernel and its shared memory, in one place for the device, the launcher's table and the emulation.
#pragma once

#ifndef PACELINE_TILE_TOKENS
#define PACELINE_TILE_TOKENS 128
#endif

namespace paceline {

constexpr int kHeadSize = 256;
constexpr int kTileRows = 32;                       // queries of a block
constexpr int kTileTokens = PACELINE_TILE_TOKENS;   // keys per step: 128, or 64 or 32 where shared memory is small
constexpr int kSlotTokens = 16;                     // tokens that are contiguous in any page
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kFragment = 16;                       // rows, columns and depth of a tensor core product
constexpr int kLanesPerRow = kThreads / kTileRows;  // threads that share a row of the softmax
constexpr int kTokensPerWarp = kTileTokens / kWarps;

// Rows of shared memory are padded by 16 bytes, so that the rows of a fragment fall into different banks.
constexpr int kHeadStride = kHeadSize + 8;          // halves: queries, keys, values
constexpr int kWeightStride = kTileTokens + 8;      // halves: weights
constexpr int kScoreStride = kTileTokens + 4;       // floats: scores
constexpr int kOutStride = kHeadSize + 4;           // floats: results on their way out

// The scores lie over the keys, which they have replaced by then; the results lie over the queries and values.
constexpr int kQueryBytes = kTileRows * kHeadStride * 2;
constexpr int kCacheBytes = kTileTokens * kHeadStride * 2;
constexpr int kWeightBytes = kTileRows * kWeightStride * 2;
constexpr int kPlaceBytes = kFragment * kFragment * 4;
constexpr int kShrinkBytes = kTileRows * 4;
constexpr int kCacheOffset = kQueryBytes;
constexpr int kWeightOffset = kCacheOffset + kCacheBytes;
constexpr int kPlaceOffset = kWeightOffset + kWeightBytes;
constexpr int kShrinkOffset = kPlaceOffset + kPlaceBytes;
constexpr int kSharedBytes = kShrinkOffset + kShrinkBytes;

static_assert(kTileTokens == 128 || kTileTokens == 64 || kTileTokens == 32, "tile must be 128, 64 or 32 tokens");
static_assert(kTileRows * kScoreStride * 4 <= kCacheBytes, "scores must fit over the keys");
static_assert(kTileRows * kOutStride * 4 <= kQueryBytes + kCacheBytes, "results must fit over queries and values");
static_assert(kSlotTokens % kTokensPerWarp == 0, "a warp's tokens must lie in one slot");

// One attention call; strides in elements. Blocks of the grid: [query tiles, sequences, heads].
struct Arguments {
  const void* query;            // half [token, head, 256]
  void* out;                    // half [token, head, 256]
  const void* key;              // half [block, kv head, token, 256], element stride 1
  const void* value;            // half [block, kv head, token, 256], element stride 1
  const int* block_table;       // [sequence, page of the sequence] -> block
  const int* query_start;       // [sequences + 1]
  const int* seq_lens;          // [sequences]
  long long query_token_stride, query_head_stride;
  long long out_token_stride, out_head_stride;
  long long key_block_stride, key_head_stride, key_token_stride;
  long long value_block_stride, value_head_stride, value_token_stride;
  long long table_stride;
  int group;                    // query heads of a kv head
  int page_size;
  float scale;
};

}  // namespace paceline

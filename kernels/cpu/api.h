// What the dispatcher and the levels share: plain data and constants only. Every level is compiled with its own
// instruction set, so an inline function here could be merged by the linker into one that the processor lacks.
#pragma once
#include <cstddef>
#include <cstdint>

namespace paceline {

constexpr int kHeadSize = 256;     // elements of a query, key or value vector
constexpr int kTileTokens = 128;   // keys per step of the online softmax
constexpr int kSlotTokens = 16;    // tokens that are contiguous in any page
constexpr int kRowUnit = 6;        // rows of a task are padded to a multiple of this
constexpr int kCacheLine = 64;

enum Dtype : int32_t { kFloat32 = 0, kBFloat16 = 1 };

// One attention call. Strides are in elements. Keys are stored with the tokens of a page contiguous, values with the
// head's elements contiguous; a page of either starts anywhere.
struct Call {
  const void* query;            // [token, head, 256]
  void* out;                    // [token, head, 256]
  const void* key;              // [block, kv head, token, 256], token stride 1
  const void* value;            // [block, kv head, token, 256], element stride 1
  const int32_t* block_table;   // [sequence, page of the sequence] -> block
  const int32_t* query_start;   // [sequences + 1] first query token of each sequence
  const int32_t* seq_lens;      // [sequences] tokens in the cache, the queries included
  int64_t query_token_stride, query_head_stride;
  int64_t out_token_stride, out_head_stride;
  int64_t key_block_stride, key_head_stride, key_element_stride;
  int64_t value_block_stride, value_head_stride, value_token_stride;
  int64_t table_stride;
  int32_t dtype;
  int32_t num_sequences;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t page_size;
  int32_t level;                // index of the level to run
  float scale;
};

// The queries [first_query, first_query + num_queries) of a sequence, for all query heads of one key-value head, over
// the keys [key_begin, key_end). Row r is query r / group, head r % group.
struct Task {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_query;
  int32_t num_queries;
  int32_t key_begin;
  int32_t key_end;
  float* partial;               // null: write the final rows; else [rows][256] sums, then [rows] maxima, [rows] weights
};

struct Level {
  const char* name;
  int32_t target_rows;                              // rows of a task that amortise packing
  size_t (*workspace_bytes)(int32_t rows);
  void (*run[2])(const Call&, const Task&, void*);  // by Dtype; null where the level has no such path
};

extern const Level kPortableLevel;
extern const Level kAvx2Level;
extern const Level kAvx512Level;
extern const Level kAmxLevel;

}  // namespace paceline

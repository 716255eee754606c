// Runs the CPU kernels on buffers of exact size, so that the address sanitizer sees every step outside them.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../../kernels/cpu/api.h"

using namespace paceline;

extern "C" int paceline_num_levels();
extern "C" int paceline_level_runs(int level, int dtype);
extern "C" const char* paceline_level_name(int level);
extern "C" int paceline_paged_prefill(const Call* call);

namespace {

struct Shape {
  std::vector<int> rows, lengths;
  int page, heads, kv_heads;
};

template <class T> T element(float v);
template <> float element(float v) { return v; }
template <> uint16_t element(float v) { uint32_t bits; std::memcpy(&bits, &v, sizeof bits); return bits >> 16; }
float widened(float v) { return v; }
float widened(uint16_t v) { uint32_t bits = static_cast<uint32_t>(v) << 16; float f; std::memcpy(&f, &bits, sizeof f); return f; }

template <class T>
std::vector<T> random_elements(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<T> v(count);
  for (T& e : v) e = element<T>(normal(random));
  return v;
}

template <class T>
int run(const Shape& shape, int dtype, int level, int missing_entries = 0, bool finite = true) {
  std::mt19937 random(1);
  int blocks = 0, most_pages = 0, tokens = 0;
  for (int length : shape.lengths) most_pages = std::max(most_pages, (length + shape.page - 1) / shape.page);
  std::vector<int32_t> table(shape.lengths.size() * most_pages), starts{0}, lengths(shape.lengths.begin(), shape.lengths.end());
  for (size_t s = 0; s < shape.rows.size(); ++s) {
    starts.push_back(tokens += shape.rows[s]);
    for (int p = 0; p * shape.page < shape.lengths[s]; ++p) table[s * most_pages + p] = blocks++;
  }
  table.resize(table.size() - missing_entries);
  table.shrink_to_fit();
  const size_t half = static_cast<size_t>(shape.page) * kHeadSize, block = 2 * half * shape.kv_heads;
  // The last slot of the last page is the end of the allocation: nothing past a slot may be read.
  std::vector<T> cache = random_elements<T>(block * blocks, random);
  std::vector<T> query = random_elements<T>(static_cast<size_t>(tokens) * shape.heads * kHeadSize, random);
  if (!finite) {
    // What takes the row-by-row paths, which must stay within the buffers, too.
    query[kHeadSize / 2] = element<T>(std::numeric_limits<float>::quiet_NaN());
    query.back() = element<T>(1e38f);
    cache[half / 2] = element<T>(-std::numeric_limits<float>::infinity());
    cache.back() = element<T>(std::numeric_limits<float>::infinity());
  }
  std::vector<T> out(query.size());
  Call call{};
  call.query = query.data();
  call.out = out.data();
  call.key = cache.data();
  call.value = cache.data() + half;
  call.block_table = table.data();
  call.query_start = starts.data();
  call.seq_lens = lengths.data();
  call.query_token_stride = call.out_token_stride = static_cast<int64_t>(shape.heads) * kHeadSize;
  call.query_head_stride = call.out_head_stride = kHeadSize;
  call.key_block_stride = call.value_block_stride = static_cast<int64_t>(block);
  call.key_head_stride = call.value_head_stride = static_cast<int64_t>(2 * half);
  call.key_element_stride = shape.page;
  call.value_token_stride = kHeadSize;
  call.table_stride = most_pages;
  call.dtype = dtype;
  call.num_sequences = static_cast<int32_t>(shape.rows.size());
  call.num_heads = shape.heads;
  call.num_kv_heads = shape.kv_heads;
  call.page_size = shape.page;
  call.level = level;
  call.scale = 1.0f / 16;
  if (paceline_paged_prefill(&call) != 0) return 1;
  for (T e : out)
    if (finite && !std::isfinite(widened(e))) return 2;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Shape> shapes = {
      {{1}, {1}, 16, 1, 1},
      {{7, 0, 33, 1}, {17, 5, 33, 300}, 48, 6, 1},
      {{40}, {170}, 784, 12, 2},
      {{1, 1}, {4097, 2049}, 528, 6, 1},
  };
  // A block table that lacks its last entry, to show that the sanitizer is on.
  if (argc > 1 && std::string(argv[1]) == "overrun") return run<float>(shapes[1], kFloat32, 0, 1);
  int ran = 0;
  for (int level = 0; level < paceline_num_levels(); ++level)
    for (const Shape& shape : shapes)
      for (int dtype : {kFloat32, kBFloat16}) {
        if (!paceline_level_runs(level, dtype)) continue;
        for (bool finite : {true, false}) {
          const int status = dtype == kFloat32 ? run<float>(shape, dtype, level, 0, finite)
                                               : run<uint16_t>(shape, dtype, level, 0, finite);
          if (status != 0) return std::printf("%s: status %d\n", paceline_level_name(level), status), 1;
          ++ran;
        }
      }
  std::printf("%d runs\n", ran);
}

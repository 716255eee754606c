// Runs the emulated CUDA kernel on buffers of exact size under the address sanitizer: what memcheck does on a GPU.
#include "../../kernels/emulation/driver.cpp"

#include <limits>
#include <random>
#include <string>

namespace {

struct Shape {
  std::vector<int> rows, lengths;
  int page, heads, kv_heads;
};

std::vector<half> random_halves(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<half> v(count);
  for (half& e : v) e = static_cast<half>(normal(random));
  return v;
}

int run(const Shape& shape, int missing_entries, bool finite = true) {
  std::mt19937 random(1);
  int blocks = 0, most_pages = 0, tokens = 0, longest = 0;
  for (int length : shape.lengths) most_pages = std::max(most_pages, (length + shape.page - 1) / shape.page);
  std::vector<int> table(shape.lengths.size() * most_pages), starts{0};
  for (size_t s = 0; s < shape.rows.size(); ++s) {
    starts.push_back(tokens += shape.rows[s]);
    longest = std::max(longest, shape.rows[s]);
    for (int p = 0; p * shape.page < shape.lengths[s]; ++p) table[s * most_pages + p] = blocks++;
  }
  table.resize(table.size() - missing_entries);
  table.shrink_to_fit();
  const size_t token = static_cast<size_t>(shape.kv_heads) * paceline::kHeadSize, block = token * shape.page;
  std::vector<half> key = random_halves(block * blocks, random), value = random_halves(block * blocks, random);
  std::vector<half> query = random_halves(static_cast<size_t>(tokens) * shape.heads * paceline::kHeadSize, random);
  if (!finite) {
    query[paceline::kHeadSize / 2] = static_cast<half>(std::numeric_limits<float>::quiet_NaN());
    query.back() = static_cast<half>(6e4f);
    key[token / 2] = static_cast<half>(-std::numeric_limits<float>::infinity());
    value.back() = static_cast<half>(std::numeric_limits<float>::infinity());
  }
  std::vector<half> out(query.size());
  paceline::Arguments a{};
  a.query = query.data();
  a.out = out.data();
  a.key = key.data();
  a.value = value.data();
  a.block_table = table.data();
  a.query_start = starts.data();
  a.seq_lens = shape.lengths.data();
  a.query_token_stride = a.out_token_stride = static_cast<long long>(shape.heads) * paceline::kHeadSize;
  a.query_head_stride = a.out_head_stride = paceline::kHeadSize;
  a.key_block_stride = a.value_block_stride = static_cast<long long>(block);
  a.key_head_stride = a.value_head_stride = paceline::kHeadSize;
  a.key_token_stride = a.value_token_stride = static_cast<long long>(token);
  a.table_stride = most_pages;
  a.group = shape.heads / shape.kv_heads;
  a.page_size = shape.page;
  a.scale = 1.0f / 16;
  emulation::grid_size = {static_cast<unsigned>((longest + paceline::kTileRows - 1) / paceline::kTileRows),
                          static_cast<unsigned>(shape.rows.size()), static_cast<unsigned>(shape.heads)};
  run_grid(a, paceline::kSharedBytes);
  for (half e : out)
    if (finite && !std::isfinite(static_cast<float>(e))) return 2;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Shape> shapes = {
      {{1}, {1}, 16, 1, 1},
      {{7, 0, 33, 1}, {17, 5, 33, 150}, 48, 2, 1},
      {{40}, {170}, 784, 4, 2},
  };
  // A block table that lacks its last entry, to show that the sanitizer is on.
  if (argc > 1 && std::string(argv[1]) == "overrun") return run(shapes[1], 1);
  for (const Shape& shape : shapes)
    for (bool finite : {true, false})
      if (run(shape, 0, finite) != 0) return std::printf("not finite\n"), 1;
  std::printf("%zu runs\n", 2 * shapes.size());
}

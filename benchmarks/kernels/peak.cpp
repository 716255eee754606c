// The rate of multiply-adds that one thread of this machine reaches from registers, in GFLOP/s of its CPU time.
// Compiled once for each width of VECTOR_BYTES, or for tiles where it is not defined.
#include <immintrin.h>
#include <cstdint>
#include <ctime>

namespace {

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr long kRounds = 4'000'000;

}  // namespace

#ifdef VECTOR_BYTES
extern "C" double peak() {
  typedef float Vec __attribute__((vector_size(VECTOR_BYTES)));
  constexpr int kChains = 12;  // independent sums: latency 4, two units
  constexpr double kLanes = VECTOR_BYTES / sizeof(float);
  Vec sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = Vec{} + static_cast<float>(i);
  const Vec half = Vec{} + 0.5f;
  const double start = cpu_seconds();
  for (long r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = sum[i] * half + half;
  }
  const double seconds = cpu_seconds() - start;
  volatile float sink = 0;
  for (int i = 0; i < kChains; ++i) sink = sink + sum[i][0];
  return 2.0 * kLanes * kChains * kRounds / seconds / 1e9;
}
#else
// The caller has asked the operating system for the tiles.
extern "C" double peak() {
  struct { uint8_t palette = 1, start_row = 0, reserved[14] = {}; uint16_t row_bytes[16] = {}; uint8_t rows[16] = {}; } config;
  for (int i = 0; i < 8; ++i) config.row_bytes[i] = 64, config.rows[i] = 16;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  const double start = cpu_seconds();
  for (long r = 0; r < kRounds; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  const double seconds = cpu_seconds() - start;
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 4 * kRounds / seconds / 1e9;
}
#endif

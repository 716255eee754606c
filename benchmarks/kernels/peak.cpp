// The rate of multiply-adds that one thread of this machine reaches from registers, in GFLOP/s of its CPU time.
#include <immintrin.h>
#include <cstdint>
#include <ctime>

namespace {

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr int kChains = 12;  // independent sums: latency 4, two units
constexpr long kRounds = 4'000'000;

}  // namespace

extern "C" double peak_avx2() {
  __m256 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 half = _mm256_set1_ps(0.5f);
  const double start = cpu_seconds();
  for (long r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], half, half);
  }
  const double seconds = cpu_seconds() - start;
  volatile float sink = 0;
  for (int i = 0; i < kChains; ++i) sink = sink + _mm256_cvtss_f32(sum[i]);
  return 16.0 * kChains * kRounds / seconds / 1e9;
}

extern "C" __attribute__((target("avx512f"))) double peak_avx512() {
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 half = _mm512_set1_ps(0.5f);
  const double start = cpu_seconds();
  for (long r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], half, half);
  }
  const double seconds = cpu_seconds() - start;
  volatile float sink = 0;
  for (int i = 0; i < kChains; ++i) sink = sink + _mm512_cvtss_f32(sum[i]);
  return 32.0 * kChains * kRounds / seconds / 1e9;
}

// The caller has asked the operating system for the tiles.
extern "C" __attribute__((target("amx-tile,amx-bf16"))) double peak_amx() {
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

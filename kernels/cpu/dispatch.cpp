// The C interface: which levels this processor runs, how a call is cut into tasks, and the threads that run them.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <vector>

#include <omp.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "api.h"

using namespace paceline;

namespace {

constexpr int kSplitKeys = 2048;    // a task of few rows takes that many keys, whatever else runs: results don't depend on it
constexpr int kSplitRows = 32;      // rows up to which keys are split among tasks
constexpr int kMinQueries = 16;     // smallest block of queries that more threads make of a prompt

const Level* const kLevels[] = {
    &kPortableLevel,
#if defined(__x86_64__)
    &kAvx2Level, &kAvx512Level, &kAmxLevel,
#endif
};
constexpr int kNumLevels = sizeof(kLevels) / sizeof(kLevels[0]);

#if defined(__x86_64__)
// AMX needs its bits in the processor and the kernel's permission to keep the tiles of this process.
bool amx_permitted() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & (kAmxBf16 | kAmxTile)) != (kAmxBf16 | kAmxTile)) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool supported(int level) {
  if (level == 0) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (level == 1) return avx2;
  if (level == 2) return avx512;
  static const bool amx = avx512 && __builtin_cpu_supports("avx512bf16") && amx_permitted();
  return level == 3 && amx;
#else
  return false;
#endif
}

struct Split {
  int sequence, kv_head, rows, first_task, num_tasks;
};

int group_of(const Call& call) { return call.num_heads / call.num_kv_heads; }
int queries_of(const Call& call, int s) { return call.query_start[s + 1] - call.query_start[s]; }

// Largest block of queries that gives every thread several tasks, so that the last ones cost little; at least kMinQueries.
int queries_per_task(const Call& call, const Level& level, int threads) {
  int block = std::max(kMinQueries, level.target_rows / group_of(call));
  while (block > kMinQueries) {
    int64_t tasks = 0;
    for (int s = 0; s < call.num_sequences; ++s) tasks += (queries_of(call, s) + block - 1) / block;
    if (tasks * call.num_kv_heads >= 8 * static_cast<int64_t>(threads)) break;
    block = std::max(kMinQueries, block / 2);
  }
  return block;
}

struct Plan {
  std::vector<Task> tasks;
  std::vector<Split> splits;
  std::vector<float> partials;
  int max_rows = 0;
};

void add_split(const Call& call, Plan& plan, int s, int h) {
  const int queries = queries_of(call, s), rows = queries * group_of(call), keys = call.seq_lens[s];
  Split split{s, h, rows, static_cast<int>(plan.tasks.size()), 0};
  for (int begin = 0; begin < keys; begin += kSplitKeys, ++split.num_tasks)
    plan.tasks.push_back({s, h, 0, queries, begin, std::min(keys, begin + kSplitKeys), nullptr});
  if (split.num_tasks > 1) plan.splits.push_back(split);
  plan.max_rows = std::max(plan.max_rows, rows);
}

void add_blocks(const Call& call, Plan& plan, int s, int h, int block) {
  const int queries = queries_of(call, s), first_position = call.seq_lens[s] - queries;
  for (int q = 0; q < queries; q += block) {
    const int count = std::min(block, queries - q);
    plan.tasks.push_back({s, h, q, count, 0, first_position + q + count, nullptr});
    plan.max_rows = std::max(plan.max_rows, count * group_of(call));
  }
}

Plan make_plan(const Call& call, const Level& level, int threads) {
  Plan plan;
  const int block = queries_per_task(call, level, threads);
  for (int s = 0; s < call.num_sequences; ++s) {
    const int queries = queries_of(call, s);
    for (int h = 0; queries > 0 && h < call.num_kv_heads; ++h) {
      if (queries * group_of(call) <= kSplitRows) add_split(call, plan, s, h);
      else add_blocks(call, plan, s, h, block);
    }
  }
  size_t floats = 0;
  for (const Split& split : plan.splits) floats += static_cast<size_t>(split.num_tasks) * split.rows * (kHeadSize + 2);
  plan.partials.resize(floats);
  float* at = plan.partials.data();
  for (const Split& split : plan.splits)
    for (int i = 0; i < split.num_tasks; ++i, at += static_cast<size_t>(split.rows) * (kHeadSize + 2))
      plan.tasks[split.first_task + i].partial = at;
  return plan;
}

int64_t cost(const Task& t) { return static_cast<int64_t>(t.num_queries) * (t.key_end - t.key_begin); }

uint16_t to_bfloat16(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if (v != v) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Join the parts of one row: each part's sums and weight are relative to its own maximum.
void merge_row(const Call& call, const Split& split, const Task* tasks, int row) {
  float maximum = -INFINITY;
  for (int i = 0; i < split.num_tasks; ++i)
    maximum = std::max(maximum, tasks[i].partial[split.rows * kHeadSize + row]);
  const float offset = maximum == -INFINITY ? 0.0f : maximum;
  float sums[kHeadSize] = {}, weight = 0.0f;
  for (int i = 0; i < split.num_tasks; ++i) {
    const float* part = tasks[i].partial;
    const float factor = std::exp2(part[split.rows * kHeadSize + row] - offset);
    weight += factor * part[split.rows * (kHeadSize + 1) + row];
    for (int d = 0; d < kHeadSize; ++d) sums[d] += factor * part[row * kHeadSize + d];
  }
  const int group = group_of(call);
  const int64_t token = call.query_start[split.sequence] + row / group;
  const int64_t at = token * call.out_token_stride + (split.kv_head * group + row % group) * call.out_head_stride;
  for (int d = 0; d < kHeadSize; ++d) {
    if (call.dtype == kFloat32) static_cast<float*>(call.out)[at + d] = sums[d] / weight;
    else static_cast<uint16_t*>(call.out)[at + d] = to_bfloat16(sums[d] / weight);
  }
}

}  // namespace

#define PACELINE_EXPORT extern "C" __attribute__((visibility("default")))

PACELINE_EXPORT const char* paceline_build_key() { return PACELINE_BUILD_KEY; }
PACELINE_EXPORT size_t paceline_call_bytes() { return sizeof(Call); }
PACELINE_EXPORT int paceline_num_levels() { return kNumLevels; }
PACELINE_EXPORT const char* paceline_level_name(int level) {
  return level >= 0 && level < kNumLevels ? kLevels[level]->name : "";
}
PACELINE_EXPORT int paceline_level_runs(int level, int dtype) {
  return level >= 0 && level < kNumLevels && (dtype == kFloat32 || dtype == kBFloat16) &&
         kLevels[level]->run[dtype] != nullptr && supported(level);
}

// 0, or 1: the level does not run here; 2: no memory for the threads' workspaces.
PACELINE_EXPORT int paceline_paged_prefill(const Call* call_pointer) {
  const Call& call = *call_pointer;
  if (!paceline_level_runs(call.level, call.dtype)) return 1;
  const Level& level = *kLevels[call.level];
  Plan plan = make_plan(call, level, omp_get_max_threads());
  std::vector<const Task*> order;
  for (const Task& task : plan.tasks) order.push_back(&task);
  std::stable_sort(order.begin(), order.end(), [](const Task* a, const Task* b) { return cost(*a) > cost(*b); });
  const int64_t num_tasks = static_cast<int64_t>(order.size());
  const size_t bytes = (level.workspace_bytes(plan.max_rows) + kCacheLine - 1) / kCacheLine * kCacheLine;
  int status = 0;
#pragma omp parallel if (num_tasks > 1)
  {
    void* workspace = std::aligned_alloc(kCacheLine, bytes);
    if (workspace == nullptr) {
#pragma omp atomic write
      status = 2;
    }
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tasks; ++i)
      if (status == 0) level.run[call.dtype](call, *order[i], workspace);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < static_cast<int64_t>(plan.splits.size()); ++i)
      for (int row = 0; status == 0 && row < plan.splits[i].rows; ++row)
        merge_row(call, plan.splits[i], &plan.tasks[plan.splits[i].first_task], row);
    std::free(workspace);
  }
  return status;
}

// The online softmax of one row, in powers of two: the caller folds log2(e) into the scale of the scores.
#pragma once
#include "api.h"

namespace {

// 2^x for x <= 0, to 2e-7 of it; exact zero below 2^-126; NaN stays NaN.
static inline __attribute__((always_inline)) Vec power_of_two(Vec x) {
  const Vec f = fraction(x);
  Vec p = broadcast(1.86713095e-3f);
  p = multiply_add(p, f, broadcast(9.0170284e-3f));
  p = multiply_add(p, f, broadcast(5.57999146e-2f));
  p = multiply_add(p, f, broadcast(2.4016445e-1f));
  p = multiply_add(p, f, broadcast(6.93151312e-1f));
  p = multiply_add(p, f, broadcast(1.0f));
  return scale_by_power(p, x);
}

static inline float power_of_two(float x) {
  float lanes[kLanes];
  store(lanes, power_of_two(broadcast(x)));
  return lanes[0];
}

constexpr float kMinusInfinity = -__builtin_inff();

// The largest of the first `visible` scores and of `running`; a NaN score is passed over here, and shows as a weight.
static inline float running_maximum(const float* scores, int visible, float running, float scale) {
  Vec m = broadcast(kMinusInfinity);
  int i = 0;
  for (; i + kLanes <= visible; i += kLanes) m = maximum(load(scores + i), m);
  if (i < visible) m = maximum(lane_below(visible - i, load(scores + i), broadcast(kMinusInfinity)), m);
  const float tile = max_lanes(m) * scale;
  return tile > running ? tile : running;
}

// What to subtract from scores: while every score was minus infinity, zero, so that their weights are zero, not NaN.
static inline float finite_offset(float maximum) { return maximum == kMinusInfinity ? 0.0f : maximum; }

static inline void scale_row(float* row, int elements, float factor) {
  for (int d = 0; d < elements; d += kLanes) store(row + d, load(row + d) * broadcast(factor));
}

// One row's scores of a tile become weights, given to `put` by vector: zero from `visible` to `columns`. The row's sums,
// maximum and total weight follow the new maximum. Scores are multiplied by `scale` (above zero) first.
template <class Put>
static inline __attribute__((always_inline)) void weigh(const float* scores, const Put& put, int visible, int columns,
                                                        float* sums, float& row_maximum, float& row_weight,
                                                        float scale = 1.0f) {
  if (visible <= 0) {
    for (int i = 0; i < columns; i += kLanes) put(i, broadcast(0.0f));
    return;
  }
  const float maximum = running_maximum(scores, visible, row_maximum, scale);
  const Vec offset = broadcast(-finite_offset(maximum)), factor = broadcast(scale);
  Vec total = broadcast(0.0f);
  int i = 0;
  for (; i + kLanes <= visible; i += kLanes) {
    const Vec w = power_of_two(multiply_add(load(scores + i), factor, offset));
    put(i, w);
    total = total + w;
  }
  if (i < visible) {
    const Vec w = lane_below(visible - i, power_of_two(multiply_add(load(scores + i), factor, offset)), broadcast(0.0f));
    put(i, w);
    total = total + w;
    i += kLanes;
  }
  for (; i < columns; i += kLanes) put(i, broadcast(0.0f));
  if (maximum != row_maximum) {
    const float shrink = power_of_two(row_maximum - finite_offset(maximum));
    scale_row(sums, paceline::kHeadSize, shrink);
    row_weight *= shrink;
    row_maximum = maximum;
  }
  row_weight += sum_lanes(total);
}

}  // namespace

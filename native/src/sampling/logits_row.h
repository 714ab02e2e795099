// A row of logits, and the passes over it that choosing and reporting share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "simd/vector.h"

namespace quire {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;

// Logits i .. i + 15; lanes after the end are minus infinity.
QUIRE_INLINE F32x16 load_logits(const float* logits, int64_t i, int64_t size) {
  return gemm::first_lanes(load_some(logits, QUIRE_F32, i, size - i), size - i, -kInfinity);
}

// The largest logit, a NaN left aside; `extent` knows whether there is one.
inline float largest(const float* logits, int64_t size, gemm::Extent& extent) {
  F32x16 top[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
  for (int64_t i = 0; i < size; i += kLanes) {
    const F32x16 v = load_logits(logits, i, size);
    F32x16& t = top[i / kLanes % 4];
    t = maximum(v, t);
    extent.add(v);
  }
  return max_lanes(maximum(maximum(top[0], top[1]), maximum(top[2], top[3])));
}

// The logarithm of the sum of exp(logit), relative to `top`, which is at least the largest.
inline double log_sum_exp(const float* logits, int64_t size, float top, int64_t block) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += block) {
    F32x16 sum = {};
    for (int64_t i = begin; i < std::min(begin + block, size); i += kLanes) {
      sum = sum + exp2_nonpositive((load_logits(logits, i, size) - top) * kLog2E);
    }
    total += sum_lanes(sum);
  }
  return top + std::log(total);
}

}  // namespace quire

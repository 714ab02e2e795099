// A row of logits, and the passes over it that choosing and reporting share.
#pragma once

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

}  // namespace quire

// What happens between the two products of attention: scores become weights, chunk by chunk, and
// the chunks of a row are merged.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/attention.h"
#include "ops/vector.h"

namespace quire {

// What is known of a row after some chunks: the largest score (times log2 e), and the sum of the
// weights relative to it.
struct RowState {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

// How a raw product q * k becomes a score.
struct ScoreRule {
  float scale;
  float softcap;        // 0: none
  const float* slopes;  // per query head, or null
  int32_t window;       // 0: none
};

constexpr float kLog2E = 1.44269504088896341f;

QUIRE_INLINE void store_element(float* out, F32x16 v) { gemm::store(out, v); }
QUIRE_INLINE void store_element(uint16_t* out, F32x16 v) { gemm::store(out, to_bf16(v)); }

// The places of a chunk that a row sees.
struct Visible {
  int low;
  int high;  // inclusive

  // Scores i .. i + 15, those out of sight at minus infinity.
  QUIRE_INLINE F32x16 load(const float* scores, int i) const {
    const F32x16 v = load_f32(scores + i);
    if (i >= low && i + kLanes - 1 <= high) return v;
    const I32x16 place = I32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + i;
    const I32x16 seen = (place >= low) & (place <= high);
    return gemm::select(seen, v, splat(-std::numeric_limits<float>::infinity()));
  }
};

// Soft cap and ALiBi, in place; rare enough to have a pass of their own.
inline void bend_scores(const ScoreRule& rule, int head, int64_t place, Visible seen,
                        float* scores) {
  for (int i = seen.low / kLanes * kLanes; i <= seen.high; i += kLanes) {
    F32x16 v = load_f32(scores + i) * rule.scale;
    if (rule.softcap > 0) v = gemm::tanh_of(v * (1.0f / rule.softcap)) * rule.softcap;
    if (rule.slopes) {
      const F32x16 distance =
          F32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + (float)(i - place);
      v = fma(distance, splat(rule.slopes[head]), v);
    }
    gemm::store(scores + i, v);
  }
}

// Turns one row's scores of a chunk into weights 2^(score - maximum). `place` is the row's position
// relative to the chunk's first. Weights in [begin, end) that the row does not see become 0.
template <class Elem>
RowState softmax_row(const ScoreRule& rule, int head, int64_t place, int begin, int end,
                     float* scores, Elem* weights) {
  const int64_t low = rule.window > 0 ? std::max<int64_t>(place - rule.window + 1, 0) : 0;
  const int64_t high = std::min<int64_t>(place, kChunk - 1);
  if (low > high) {
    std::fill(weights + begin, weights + end, Elem{0});
    return {};
  }
  const Visible seen{static_cast<int>(low), static_cast<int>(high)};
  float factor = rule.scale * kLog2E;
  if (rule.softcap > 0 || rule.slopes) {
    bend_scores(rule, head, place, seen, scores);
    factor = kLog2E;
  }
  const int first = seen.low / kLanes * kLanes;
  F32x16 largest = splat(-std::numeric_limits<float>::infinity());
  for (int i = first; i <= seen.high; i += kLanes) largest = max(largest, seen.load(scores, i));
  RowState state{max_lanes(largest) * factor, 0.0f};
  F32x16 sum = {};
  int i = first;
  for (; i <= seen.high; i += kLanes) {
    const F32x16 weight =
        exp2_nonpositive(fma(seen.load(scores, i), splat(factor), splat(-state.maximum)));
    sum = sum + weight;
    store_element(weights + i, weight);
  }
  std::fill(weights + begin, weights + std::max(begin, first), Elem{0});
  if (i < end) std::fill(weights + i, weights + end, Elem{0});
  state.sum = sum_lanes(sum);
  return state;
}

// Adds one chunk's result to what came before it.
inline void merge_row(RowState& state, float* result, RowState chunk, const float* value,
                      int64_t dim) {
  if (chunk.sum == 0.0f) return;
  const float maximum = std::max(state.maximum, chunk.maximum);
  F32x16 difference = {};
  difference[0] = state.maximum - maximum;
  difference[1] = chunk.maximum - maximum;
  const F32x16 factor = exp2_nonpositive(difference);
  const F32x16 old_factor = splat(factor[0]);
  const F32x16 new_factor = splat(factor[1]);
  state.sum = state.sum * factor[0] + chunk.sum * factor[1];
  state.maximum = maximum;
  for (int64_t d = 0; d < dim; d += kLanes) {
    gemm::store(result + d,
                fma(load_f32(result + d), old_factor, load_f32(value + d) * new_factor));
  }
}

}  // namespace quire

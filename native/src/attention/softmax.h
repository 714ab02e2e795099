// What happens between the two products of attention: scores become weights, chunk by chunk, and
// the chunks of a row are merged.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/attention.h"
#include "attention/numbers.h"
#include "simd/vector.h"

namespace quire {

// What is known of rows after some chunks: the largest score (times log2 e), and the sum of the
// weights relative to it.
struct RowStates {
  // A vector that begins at any row ends within the array.
  static constexpr int kRoom = kItemRows + kLanes;
  alignas(64) float maximum[kRoom];
  alignas(64) float sum[kRoom];

  void clear(int rows) {
    std::fill_n(maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, rows, 0.0f);
  }
};

// How a raw product q * k becomes a score.
struct ScoreRule {
  float scale;
  float softcap;                  // 0: none
  const float* slopes;            // per query head, or null
  const float* biases = nullptr;  // per query head, of distances -reach to reach; or null
  int64_t reach = 0;

  bool bends() const { return softcap > 0 || slopes != nullptr || biases != nullptr; }
  // What a product is multiplied by, or a score that was bent, to be an exponent of 2.
  float factor() const;
};

// What the numbers of a token are multiplied by, for every place of the chunk; null: nothing.
struct TokenScales {
  const float* keys;
  const float* values;
};

constexpr float kLog2E = 1.44269504088896341f;

inline float ScoreRule::factor() const { return bends() ? kLog2E : scale * kLog2E; }

// The places of a chunk that a row sees, both ends included.
struct Visible {
  int low;
  int high;

  int first_step(int step) const { return low / step * step; }
  int behind_steps(int step) const { return high / step * step + step; }

  // Values i .. i + 15, those of places out of sight replaced: they may be no numbers.
  QUIRE_INLINE F32x16 at(const float* values, int i, float outside) const {
    if (i >= low && i + kLanes - 1 <= high) return load_f32(values + i);
    const I32x16 place = gemm::lane_numbers() + i;
    const I32x16 seen = (place >= low) & (place <= high);
    return gemm::select(seen, load_f32(values + i), splat(outside));
  }
};

// All places of a chunk.
struct WholeChunk {
  static constexpr int low = 0;
  static constexpr int high = kChunk - 1;

  static constexpr int first_step(int) { return 0; }
  static constexpr int behind_steps(int) { return kChunk; }
  static QUIRE_INLINE F32x16 at(const float* values, int i, float) { return load_f32(values + i); }
};

// What a row sees of a chunk, if it sees `first` to `last` of its context; both are relative to the
// chunk's first. low > high: nothing.
inline Visible visible_places(int64_t first, int64_t last) {
  const int64_t low = std::max<int64_t>(first, 0);
  const int64_t high = std::clamp<int64_t>(last, -1, kChunk - 1);
  return {static_cast<int>(std::min<int64_t>(low, kChunk)), static_cast<int>(high)};
}

// Biases of places i .. i + 15 for the row at `place`.
inline F32x16 biases_at(const ScoreRule& rule, int head, int64_t place, int i) {
  const float* of_head = rule.biases + head * (2 * rule.reach + 1) + rule.reach;
  alignas(64) float found[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    found[lane] = of_head[std::clamp<int64_t>(i + lane - place, -rule.reach, rule.reach)];
  }
  return load_f32(found);
}

// Multiplies the scores of visible places, and of others in the same vectors.
inline void multiply(const float* factors, Visible seen, float* scores) {
  for (int i = seen.low / kLanes * kLanes; i <= seen.high; i += kLanes) {
    gemm::store(scores + i, load_f32(scores + i) * load_f32(factors + i));
  }
}

// Soft cap, ALiBi and relative biases, in place; rare enough to have a pass of their own.
inline void bend_scores(const ScoreRule& rule, int head, int64_t place, Visible seen,
                        float* scores) {
  for (int i = seen.low / kLanes * kLanes; i <= seen.high; i += kLanes) {
    F32x16 v = load_f32(scores + i) * rule.scale;
    if (rule.softcap > 0) v = gemm::tanh_of(v * (1.0f / rule.softcap)) * rule.softcap;
    if (rule.slopes) {
      const F32x16 distance =
          gemm::convert<F32x16>(gemm::lane_numbers()) + static_cast<float>(i - place);
      v = fma(-gemm::absolute(distance), splat(rule.slopes[head]), v);
    }
    if (rule.biases) v = v + biases_at(rule, head, place, i);
    gemm::store(scores + i, v);
  }
}

// What turns a row's scores of a chunk into weights. All rows of a tile pass each of three stages
// before the next: within a stage they do not wait for each other, as the stages of a row do.
struct ScoreRow {
  int head;
  int64_t place;  // of the row, relative to the chunk's first
  Visible seen;
  float maximum;  // times log2 e

  bool sees_nothing() const { return seen.low > seen.high; }
  bool sees_all() const { return seen.low == WholeChunk::low && seen.high == WholeChunk::high; }
};

template <class Seen>
QUIRE_INLINE float largest_of(const float* scores, Seen seen) {
  constexpr float kOutOfSight = -std::numeric_limits<float>::infinity();
  F32x16 largest[2] = {splat(kOutOfSight), splat(kOutOfSight)};
  const int behind = seen.behind_steps(kPair);
  for (int i = seen.first_step(kPair); i < behind; i += kPair) {
    largest[0] = gemm::maximum(largest[0], seen.at(scores, i, kOutOfSight));
    largest[1] = gemm::maximum(largest[1], seen.at(scores, i + kLanes, kOutOfSight));
  }
  return max_lanes(gemm::maximum(largest[0], largest[1]));
}

// First: finds the row's largest score.
inline void find_largest(const ScoreRule& rule, const TokenScales& scales, ScoreRow& row,
                         float* scores) {
  row.maximum = -std::numeric_limits<float>::infinity();
  if (row.sees_nothing()) return;
  if (scales.keys) multiply(scales.keys, row.seen, scores);
  if (rule.bends()) bend_scores(rule, row.head, row.place, row.seen, scores);
  const float largest =
      row.sees_all() ? largest_of(scores, WholeChunk{}) : largest_of(scores, row.seen);
  row.maximum = largest * rule.factor();
}

template <class Weights, class Seen>
QUIRE_INLINE float weigh_seen(float factor, float maximum, const float* value_scales, Seen seen,
                              int begin, int end, const float* scores, Weights& weights) {
  constexpr float kOutOfSight = -std::numeric_limits<float>::infinity();
  const F32x16 scale = splat(factor);
  const F32x16 shift = splat(-maximum);
  constexpr int kStep = Weights::kStep;
  const int first = seen.first_step(kStep);
  const int behind = seen.behind_steps(kStep);
  F32x16 sum[2] = {};
  for (int i = first; i < behind; i += kStep) {
    F32x16 weight[kStep / kLanes];
#pragma GCC unroll 4
    for (int v = 0; v < kStep / kLanes; ++v) {
      const int at = i + v * kLanes;
      weight[v] = Weights::power(fma(seen.at(scores, at, kOutOfSight), scale, shift));
      sum[v % 2] += weight[v];
      if (value_scales) weight[v] = weight[v] * seen.at(value_scales, at, 0.0f);
    }
    weights.put(i, weight);
  }
  weights.clear(begin, first);
  weights.clear(behind, end);
  weights.finish(begin, end);
  return sum_lanes(sum[0] + sum[1]);
}

// Second: makes weights 2^(score - maximum), times V's scales, and returns their sum without these.
// Weights in [begin, end) that are not seen become 0; both are multiples of kPair. A score that is
// a NaN gives a weight and a sum of NaN. Third comes Weights::settle().
template <class Weights>
float weigh(const ScoreRule& rule, const TokenScales& scales, const ScoreRow& row, int begin,
            int end, float* scores, typename Weights::Elem* out) {
  Weights weights(scores, out);
  if (row.sees_nothing()) {
    weights.clear(begin, end);
    weights.finish(begin, end);
    return 0.0f;
  }
  // Most of what long prompts see, without a look at every place.
  if (row.sees_all()) {
    return weigh_seen(rule.factor(), row.maximum, scales.values, WholeChunk{}, 0, kChunk, scores,
                      weights);
  }
  return weigh_seen(rule.factor(), row.maximum, scales.values, row.seen, begin, end, scores,
                    weights);
}

// Adds one chunk's results to what came before it: rows r0 .. r0 + rows - 1 of `states` and
// `result` with the first `rows` of `chunk` and `values`.
inline void merge_rows(RowStates& states, int r0, int rows, const RowStates& chunk, float* result,
                       const float* values, int64_t dim) {
  for (int r = 0; r < rows; r += kLanes) {
    const F32x16 old_maximum = load_f32(states.maximum + r0 + r);
    const F32x16 new_maximum = load_f32(chunk.maximum + r);
    const F32x16 maximum = gemm::maximum(old_maximum, new_maximum);
    alignas(64) float old_factor[kLanes];
    alignas(64) float new_factor[kLanes];
    gemm::store(old_factor, exp2_nonpositive(old_maximum - maximum));
    gemm::store(new_factor, exp2_nonpositive(new_maximum - maximum));
    for (int lane = 0; lane < kLanes && r + lane < rows; ++lane) {
      const int row = r0 + r + lane;
      const float sum = chunk.sum[r + lane];
      if (sum == 0.0f) continue;  // the row sees nothing of the chunk
      states.maximum[row] = std::max(states.maximum[row], chunk.maximum[r + lane]);
      states.sum[row] = states.sum[row] * old_factor[lane] + sum * new_factor[lane];
      const F32x16 keep = splat(old_factor[lane]);
      const F32x16 add = splat(new_factor[lane]);
      float* into = result + row * dim;
      const float* from = values + (r + lane) * dim;
      for (int64_t d = 0; d < dim; d += kLanes) {
        gemm::store(into + d, fma(load_f32(into + d), keep, load_f32(from + d) * add));
      }
    }
  }
}

}  // namespace quire

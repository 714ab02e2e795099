// The router of a mixture of experts: from logits to the weights of the experts that a row takes.
//
// All in float32, and each row by itself. Equal choices: the lower number wins.
#include <algorithm>
#include <cmath>
#include <limits>

#include "linear/activation.h"
#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

constexpr int64_t kMaxExperts = 1024;

// The `most` best of the numbers that are offered, best first; of equal ones the first offered.
class Best {
 public:
  explicit Best(int64_t most) : most_(most) {}

  void offer(int32_t number, float value) {
    if (count_ == most_ && !(value > values_[count_ - 1])) return;
    int64_t place = count_ < most_ ? count_++ : count_ - 1;
    for (; place > 0 && value > values_[place - 1]; --place) {
      values_[place] = values_[place - 1];
      numbers_[place] = numbers_[place - 1];
    }
    values_[place] = value;
    numbers_[place] = number;
  }
  int64_t count() const { return count_; }
  int32_t number(int64_t i) const { return numbers_[i]; }
  float value(int64_t i) const { return values_[i]; }

 private:
  const int64_t most_;
  int64_t count_ = 0;
  int32_t numbers_[kMaxExperts];
  float values_[kMaxExperts];
};

bool all_finite_row(const float* row, int64_t count) {
  gemm::Extent extent;
  for (int64_t i = 0; i < count; i += kLanes) extent.add(load_some(row, QUIRE_F32, i, count - i));
  return extent.bad() == 0.0f;
}

// Each score becomes exp(logit - largest) / sum.
void softmax(const float* logits, int64_t count, float* scores) {
  float largest = logits[0];
  for (int64_t i = 1; i < count; ++i) largest = std::max(largest, logits[i]);
  F32x16 sums = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    const F32x16 e = gemm::exponential(load_some(logits, QUIRE_F32, i, n) - largest);
    store_some(scores, QUIRE_F32, i, n, e);
    sums = sums + (n < kLanes ? gemm::first_lanes(e, n, 0.0f) : e);
  }
  const float sum = sum_lanes(sums);
  for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
}

void sigmoid(const float* logits, int64_t count, float* scores) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    const F32x16 x = load_some(logits, QUIRE_F32, i, n);
    store_some(scores, QUIRE_F32, i, n, 1.0f / (1.0f + gemm::exponential(x * -1.0f)));
  }
}

// Which groups' experts may be chosen.
void choose_groups(const quire_route& op, const float* choice, bool* allowed) {
  const int64_t size = op.logits.dim / op.num_groups;
  Best groups(op.top_groups);
  for (int32_t g = 0; g < op.num_groups; ++g) {
    Best members(op.group_best);
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      members.offer(static_cast<int32_t>(e), choice[e]);
    }
    float sum = 0.0f;
    for (int64_t i = 0; i < members.count(); ++i) sum += members.value(i);
    groups.offer(g, sum);
    allowed[g] = false;
  }
  for (int64_t i = 0; i < groups.count(); ++i) allowed[groups.number(i)] = true;
}

Best choose(const quire_route& op, const float* choice) {
  Best best(op.top_k);
  if (op.top_groups == op.num_groups) {
    for (int32_t e = 0; e < op.logits.dim; ++e) best.offer(e, choice[e]);
    return best;
  }
  bool allowed[kMaxExperts];
  choose_groups(op, choice, allowed);
  const int64_t size = op.logits.dim / op.num_groups;
  for (int32_t e = 0; e < op.logits.dim; ++e) {
    if (allowed[e / size]) best.offer(e, choice[e]);
  }
  return best;
}

// The largest number of a row, the first of equal ones.
int64_t largest_of(const float* row, int64_t count) {
  return std::max_element(row, row + count) - row;
}

// See `sparsemixer` of Route in program/ops.py. What is near is asked of the logits themselves.
void mix_sparsely(const quire_route& op, const float* logits, float* out) {
  const int64_t count = op.logits.dim;
  constexpr float kTaken = -std::numeric_limits<float>::infinity();
  float left[kMaxExperts];
  float near[kMaxExperts];
  std::copy_n(logits, count, left);
  std::fill_n(out, count, 0.0f);
  for (int choice = 0; choice < 2; ++choice) {
    const int64_t best = largest_of(left, count);
    const float most = left[best];
    for (int64_t e = 0; e < count; ++e) {
      const float distance = (most - logits[e]) / std::max(std::fabs(logits[e]), most);
      near[e] = distance > 2.0f * op.jitter ? kTaken : left[e];
    }
    softmax(near, count, near);
    out[best] = near[best];
    left[best] = kTaken;
  }
}

void route_row(const quire_route& op, const float* logits, const float* bias, float* out) {
  const int64_t count = op.logits.dim;
  if (!all_finite_row(logits, count)) {
    for (int64_t e = 0; e < count; ++e) {
      out[e] = e < op.top_k ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    }
    return;
  }
  if (op.score == QUIRE_ROUTE_SCORE_SPARSEMIXER) {
    mix_sparsely(op, logits, out);
    return;
  }
  float scores[kMaxExperts];
  float biased[kMaxExperts];
  if (op.score == QUIRE_ROUTE_SCORE_SOFTMAX) {
    softmax(logits, count, scores);
  } else {
    sigmoid(logits, count, scores);
  }
  // Scores ascend with logits, and rounding makes none of these equal.
  const float* choice = logits;
  if (bias != nullptr) {
    for (int64_t e = 0; e < count; ++e) biased[e] = scores[e] + bias[e];
    choice = biased;
  }
  const Best chosen = choose(op, choice);
  float factor = op.scale;
  if (op.normalise) {
    float sum = 0.0f;
    for (int64_t i = 0; i < chosen.count(); ++i) sum += scores[chosen.number(i)];
    factor /= std::max(sum, op.floor);
  }
  std::fill_n(out, count, 0.0f);
  for (int64_t i = 0; i < chosen.count(); ++i) {
    out[chosen.number(i)] = scores[chosen.number(i)] * factor;
  }
}

void check_route(const OpChecks& checks, const quire_route& route) {
  checks.vector(route.bias, route.logits.dim);
  checks.require(route.logits.dtype == QUIRE_F32 && route.out.dtype == QUIRE_F32, "not float32");
  checks.require(route.logits.dim == route.out.dim && route.out.dim <= kMaxExperts,
                 "dims differ, or are more than 1024 experts");
  checks.require(route.score != QUIRE_ROUTE_SCORE_SPARSEMIXER ||
                     (route.top_k == 2 && route.jitter >= 0),
                 "sparsemixer takes two experts, and its jitter is not negative");
  checks.require(route.num_groups >= 1 && route.logits.dim % route.num_groups == 0 &&
                     route.top_groups >= 1 && route.top_groups <= route.num_groups,
                 "the groups do not divide the experts");
  const int64_t size = route.logits.dim / route.num_groups;
  checks.require(route.group_best >= 1 && route.group_best <= size, "group_best");
  checks.require(route.top_k >= 1 && route.top_k <= size * route.top_groups, "top_k");
}

void run_route(const Step& step, const quire_route& op, int32_t rows) {
  const float* bias = step.vector(op.bias);
  by_rows(step, step.rows(rows), op.logits.dim, [&](Span span) {
    for (int64_t r = span.first; r < span.last; ++r) {
      route_row(op, step.f32_row(op.logits, r), bias, step.f32_row(op.out, r));
    }
  });
}

const OpRegistration kRoute(op_kind<quire_route, check_route, run_route>());

}  // namespace
}  // namespace quire

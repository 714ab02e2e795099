// Elementwise ops that were not fused with another op.
#include <algorithm>
#include <cmath>

#include "linear/activation.h"
#include "ops/by_rows.h"
#include "ops/op_checks.h"
#include "ops/op_kind.h"
#include "runtime/finite_watch.h"
#include "simd/vector.h"

namespace quire {
namespace {

template <class F>
void each(const Step& step, const quire_pointwise& op, Span span, F f) {
  const bool binary = op.b.offset >= 0;
  for (int64_t r = span.first; r < span.last; ++r) {
    const uint8_t* a = step.row(op.a, r);
    const uint8_t* b = binary ? step.row(op.b, r) : a;
    const int32_t b_dtype = binary ? op.b.dtype : op.a.dtype;
    uint8_t* out = step.row(op.out, r);
    for (int64_t i = 0; i < op.out.dim; i += kLanes) {
      const int64_t n = op.out.dim - i;
      store_some(out, op.out.dtype, i, n,
                 f(load_some(a, op.a.dtype, i, n), load_some(b, b_dtype, i, n)));
    }
  }
}

template <Activation kind>
void activated(const Step& step, const quire_pointwise& op, Span span) {
  if (op.kind == QUIRE_POINTWISE_GLU) {
    each(step, op, span, [](F32x16 a, F32x16 b) { return gemm::activate_glu<kind>(a, b); });
  } else {
    each(step, op, span, [](F32x16 a, F32x16) { return gemm::activate<kind>(a); });
  }
}

// expm1(x) - x for x <= 0. Near 0 the difference cancels, so its series stands in: the first term
// that is left out is below 2e-8 of the sum.
QUIRE_INLINE F32x16 expm1_minus_x(F32x16 x) {
  F32x16 p = x * (1.0f / 40320) + 1.0f / 5040;
  p = p * x + 1.0f / 720;
  p = p * x + 1.0f / 120;
  p = p * x + 1.0f / 24;
  p = p * x + 1.0f / 6;
  p = p * x + 0.5f;
  const F32x16 large = gemm::exponential(x) - 1.0f - x;
  return gemm::if_less(x, splat(-0.35f), large, p * x * x);
}

float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }

void xielu_rows(const Step& step, const quire_pointwise& op, Span span) {
  const float positive = softplus(*step.vector(op.alphas[0]));
  const float negative = op.factor + softplus(*step.vector(op.alphas[1]));
  const float beta = op.factor;
  const F32x16 eps = splat(op.eps);
  each(step, op, span, [=](F32x16 a, F32x16) {
    const F32x16 low = gemm::minimum(a, eps);
    const F32x16 bent = (expm1_minus_x(low) + (low - a)) * negative;
    return gemm::if_less(F32x16{}, a, a * a * positive, bent) + a * beta;
  });
}

void scale_by_position(const Step& step, const quire_pointwise& op, Span span) {
  for (int64_t r = span.first; r < span.last; ++r) {
    const int32_t periods = (step.batch.positions[r] + op.shift) / op.period;
    const float factor = 1.0f + op.factor * std::log(1.0f + static_cast<float>(periods));
    each(step, op, {r, r + 1}, [factor](F32x16 a, F32x16) { return a * factor; });
  }
}

// b has one number for each row, or as many as a.
void gated(const Step& step, const quire_pointwise& op, Span span) {
  if (op.b.dim != 1) {
    return each(step, op, span,
                [](F32x16 a, F32x16 b) { return a / (1.0f + gemm::exponential(b * -1.0f)); });
  }
  for (int64_t r = span.first; r < span.last; ++r) {
    const F32x16 b = load_some(step.row(op.b, r), op.b.dtype, 0, 1);
    const F32x16 gate = splat(gemm::first_lane(1.0f / (1.0f + gemm::exponential(b * -1.0f))));
    const uint8_t* a = step.row(op.a, r);
    uint8_t* out = step.row(op.out, r);
    for (int64_t i = 0; i < op.out.dim; i += kLanes) {
      const int64_t n = op.out.dim - i;
      store_some(out, op.out.dtype, i, n, load_some(a, op.a.dtype, i, n) * gate);
    }
  }
}

void weighed(const Step& step, const quire_pointwise& op, Span span) {
  const Vector& w = step.model.vectors[op.alphas[0]];
  if (w.size() == 1) {
    const float factor = w[0];
    return each(step, op, span, [factor](F32x16 a, F32x16) { return a * factor; });
  }
  for (int64_t r = span.first; r < span.last; ++r) {
    by_vectors(op.out.dim, [&](int64_t i, int64_t n) {
      const F32x16 weight = load_some(w.data(), QUIRE_F32, i, n);
      store_some(step.row(op.out, r), op.out.dtype, i, n,
                 load_some(step.row(op.a, r), op.a.dtype, i, n) * weight);
    });
  }
}

// b has one number for each row.
void scaled_by_row(const Step& step, const quire_pointwise& op, Span span) {
  for (int64_t r = span.first; r < span.last; ++r) {
    const F32x16 factor = splat(gemm::first_lane(load_some(step.row(op.b, r), op.b.dtype, 0, 1)));
    by_vectors(op.out.dim, [&](int64_t i, int64_t n) {
      store_some(step.row(op.out, r), op.out.dtype, i, n,
                 load_some(step.row(op.a, r), op.a.dtype, i, n) * factor);
    });
  }
}

float mean_of_squares(const void* row, const quire_view& view, float less) {
  F32x16 squares = {};
  by_vectors(view.dim, [&](int64_t i, int64_t n) {
    const F32x16 v = gemm::first_lanes(load_some(row, view.dtype, i, n) - less, n, 0.0f);
    squares = fma(v, v, squares);
  });
  return sum_lanes(squares) / view.dim;
}

// Two passes, as in layer norms.
void outliers(const Step& step, const quire_pointwise& op, Span span) {
  for (int64_t r = span.first; r < span.last; ++r) {
    const uint8_t* a = step.row(op.a, r);
    F32x16 sum = {};
    by_vectors(op.a.dim, [&](int64_t i, int64_t n) { sum = sum + load_some(a, op.a.dtype, i, n); });
    const float mean = sum_lanes(sum) / op.a.dim;
    const float limit = mean + op.factor * std::sqrt(mean_of_squares(a, op.a, mean));
    each(step, op, {r, r + 1},
         [limit](F32x16 x, F32x16) { return gemm::activate<Activation::kRelu>(x - limit); });
  }
}

void match_rms(const Step& step, const quire_pointwise& op, Span span) {
  for (int64_t r = span.first; r < span.last; ++r) {
    const float own = std::max(mean_of_squares(step.row(op.a, r), op.a, 0.0f), op.eps);
    const float wanted = mean_of_squares(step.row(op.b, r), op.b, 0.0f);
    const float factor = std::sqrt(wanted) / std::sqrt(own);
    each(step, op, {r, r + 1}, [factor](F32x16 a, F32x16) { return a * factor; });
  }
}

void pointwise_rows(const Step& step, const quire_pointwise& op, Span span) {
  if (op.kind == QUIRE_POINTWISE_ADD) {
    each(step, op, span, [](F32x16 a, F32x16 b) { return a + b; });
    return;
  }
  if (op.kind == QUIRE_POINTWISE_SCALE) {
    const float factor = op.factor;
    each(step, op, span, [factor](F32x16 a, F32x16) { return a * factor; });
    return;
  }
  if (op.kind == QUIRE_POINTWISE_CLAMP) {
    const F32x16 limit = splat(op.factor);
    // In this order a NaN stays one.
    each(step, op, span,
         [limit](F32x16 a, F32x16) { return gemm::maximum(-limit, gemm::minimum(limit, a)); });
    return;
  }
  if (op.kind == QUIRE_POINTWISE_BETWEEN) {
    const F32x16 low = splat(*step.vector(op.alphas[0])), high = splat(*step.vector(op.alphas[1]));
    each(step, op, span,
         [=](F32x16 a, F32x16) { return gemm::maximum(low, gemm::minimum(high, a)); });
    return;
  }
  if (op.kind == QUIRE_POINTWISE_POSITION_SCALE) return scale_by_position(step, op, span);
  if (op.kind == QUIRE_POINTWISE_XIELU) return xielu_rows(step, op, span);
  if (op.kind == QUIRE_POINTWISE_GATE) return gated(step, op, span);
  if (op.kind == QUIRE_POINTWISE_WEIGH) return weighed(step, op, span);
  if (op.kind == QUIRE_POINTWISE_ROW_SCALE) return scaled_by_row(step, op, span);
  if (op.kind == QUIRE_POINTWISE_OUTLIERS) return outliers(step, op, span);
  if (op.kind == QUIRE_POINTWISE_MATCH_RMS) return match_rms(step, op, span);
  if (op.kind == QUIRE_POINTWISE_SOFTCAP) {
    const float cap = op.factor;
    each(step, op, span, [cap](F32x16 a, F32x16) { return gemm::tanh_of(a * (1.0f / cap)) * cap; });
    return;
  }
  switch (static_cast<Activation>(op.activation)) {
    case Activation::kSilu:
      return activated<Activation::kSilu>(step, op, span);
    case Activation::kGelu:
      return activated<Activation::kGelu>(step, op, span);
    case Activation::kGeluTanh:
      return activated<Activation::kGeluTanh>(step, op, span);
    case Activation::kRelu:
      return activated<Activation::kRelu>(step, op, span);
    case Activation::kRelu2:
      return activated<Activation::kRelu2>(step, op, span);
    case Activation::kGeluQuick:
      return activated<Activation::kGeluQuick>(step, op, span);
    case Activation::kSwigluOai:
      return activated<Activation::kSwigluOai>(step, op, span);
    case Activation::kTanh:
      return activated<Activation::kTanh>(step, op, span);
    case Activation::kNone:
      return activated<Activation::kNone>(step, op, span);
  }
}

void check_pointwise(const OpChecks& checks, const quire_op& op) {
  const quire_pointwise& pointwise = op.u.pointwise;
  const int32_t kind = pointwise.kind;
  const bool by_row = kind == QUIRE_POINTWISE_GATE || kind == QUIRE_POINTWISE_ROW_SCALE;
  const bool binary = by_row || kind == QUIRE_POINTWISE_ADD || kind == QUIRE_POINTWISE_GLU ||
                      kind == QUIRE_POINTWISE_MATCH_RMS;
  checks.require(kind >= QUIRE_POINTWISE_ADD && kind <= QUIRE_POINTWISE_BETWEEN, "kind");
  checks.require(pointwise.activation >= QUIRE_ACT_NONE && pointwise.activation <= QUIRE_ACT_TANH,
                 "activation");
  checks.view(pointwise.a);
  checks.view(pointwise.out);
  checks.optional_view(pointwise.b);
  checks.require(!binary || pointwise.b.offset >= 0, "b is missing");
  const bool is_one = by_row && (kind != QUIRE_POINTWISE_GATE || pointwise.b.dim == 1);
  const int32_t dim_of_b = is_one ? 1 : pointwise.out.dim;
  checks.require(pointwise.a.dim == pointwise.out.dim && (!binary || pointwise.b.dim == dim_of_b),
                 "dims differ");
  if (pointwise.kind == QUIRE_POINTWISE_POSITION_SCALE) {
    checks.require(pointwise.period >= 1 && pointwise.shift >= 0, "period");
    checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "rows without positions");
  }
  if (kind == QUIRE_POINTWISE_XIELU || kind == QUIRE_POINTWISE_BETWEEN) {
    checks.require(pointwise.alphas[0] >= 0 && pointwise.alphas[1] >= 0, "no alphas");
    for (const int32_t alpha : pointwise.alphas) checks.vector(alpha, 1);
  }
  if (kind == QUIRE_POINTWISE_WEIGH) {
    const auto& vectors = checks.model().vectors;
    const int32_t weight = pointwise.alphas[0];
    checks.require(weight >= 0 && weight < static_cast<int32_t>(vectors.size()), "no such weight");
    const auto size = static_cast<int64_t>(vectors[weight].size());
    checks.require(size == 1 || size == pointwise.out.dim, "weight of another size");
  }
  if (kind == QUIRE_POINTWISE_SOFTCAP) checks.require(pointwise.factor > 0, "cap");
}

void run_pointwise(const Step& step, const quire_op& op) {
  const quire_pointwise& pointwise = op.u.pointwise;
  by_rows(step, step.rows(op.rows), pointwise.out.dim,
          [&](Span span) { pointwise_rows(step, pointwise, span); });
}

void look_at_pointwise(FiniteWatch& watch, const quire_op& op) {
  watch.look_at_rows(op.u.pointwise.out, op.rows);
}

const OpRegistration kPointwise({QUIRE_OP_POINTWISE, "pointwise", check_pointwise, run_pointwise,
                                 look_at_pointwise});

}  // namespace
}  // namespace quire

// Elementwise ops that were not fused with another op, one function each, over some rows.
#include <algorithm>
#include <cmath>

#include "linear/activation.h"
#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

// out = f(x), sixteen numbers at a time.
template <class Op, class F>
void each(const Step& step, const Op& op, Span span, F f) {
  for (int64_t r = span.first; r < span.last; ++r) {
    const uint8_t* x = step.row(op.x, r);
    uint8_t* out = step.row(op.out, r);
    by_vectors(op.out.dim, [&](int64_t i, int64_t n) {
      store_some(out, op.out.dtype, i, n, f(load_some(x, op.x.dtype, i, n)));
    });
  }
}

// out = f(a, b) likewise.
template <class F>
void each_pair(const Step& step, const quire_view& a, const quire_view& b, const quire_view& out,
               Span span, F f) {
  for (int64_t r = span.first; r < span.last; ++r) {
    by_vectors(out.dim, [&](int64_t i, int64_t n) {
      store_some(step.row(out, r), out.dtype, i, n,
                 f(load_some(step.row(a, r), a.dtype, i, n),
                   load_some(step.row(b, r), b.dtype, i, n)));
    });
  }
}

// out = factor(r) * x, where row r has one factor.
template <class Op, class F>
void each_row(const Step& step, const Op& op, Span span, F factor) {
  for (int64_t r = span.first; r < span.last; ++r) {
    each(step, op, {r, r + 1}, [f = splat(factor(r))](F32x16 x) { return x * f; });
  }
}

// The only number of a row.
F32x16 one_of(const Step& step, const quire_view& view, int64_t r) {
  return load_some(step.row(view, r), view.dtype, 0, 1);
}

F32x16 sigmoid(F32x16 x) { return 1.0f / (1.0f + gemm::exponential(x * -1.0f)); }

void add(const Step& step, const quire_add& op, Span span) {
  each_pair(step, op.a, op.b, op.out, span, [](F32x16 a, F32x16 b) { return a + b; });
}

void glu(const Step& step, const quire_glu& op, Span span) {
  gemm::with_activation(op.act, [&](auto kind) {
    each_pair(step, op.gate, op.up, op.out, span, [](F32x16 gate, F32x16 up) {
      return gemm::activate_glu<decltype(kind)::value>(gate, up);
    });
  });
}

void act(const Step& step, const quire_act& op, Span span) {
  gemm::with_activation(op.act, [&](auto kind) {
    each(step, op, span, [](F32x16 x) { return gemm::activate<decltype(kind)::value>(x); });
  });
}

void scale(const Step& step, const quire_scale& op, Span span) {
  each(step, op, span, [factor = op.factor](F32x16 x) { return x * factor; });
}

// In this order a NaN stays one.
F32x16 bounded(F32x16 x, F32x16 low, F32x16 high) {
  return gemm::maximum(low, gemm::minimum(high, x));
}

void clamp(const Step& step, const quire_clamp& op, Span span) {
  const F32x16 limit = splat(op.limit);
  each(step, op, span, [limit](F32x16 x) { return bounded(x, -limit, limit); });
}

void between(const Step& step, const quire_between& op, Span span) {
  const F32x16 low = splat(*step.vector(op.low)), high = splat(*step.vector(op.high));
  each(step, op, span, [=](F32x16 x) { return bounded(x, low, high); });
}

void soft_cap(const Step& step, const quire_soft_cap& op, Span span) {
  each(step, op, span,
       [cap = op.cap](F32x16 x) { return gemm::tanh_of(x * (1.0f / cap)) * cap; });
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

void xielu(const Step& step, const quire_xielu& op, Span span) {
  const float positive = softplus(*step.vector(op.positive));
  const float beta = op.beta;
  const float negative = beta + softplus(*step.vector(op.negative));
  const F32x16 eps = splat(op.eps);
  each(step, op, span, [=](F32x16 x) {
    const F32x16 low = gemm::minimum(x, eps);
    const F32x16 bent = (expm1_minus_x(low) + (low - x)) * negative;
    return gemm::if_less(F32x16{}, x, x * x * positive, bent) + x * beta;
  });
}

void position_scale(const Step& step, const quire_position_scale& op, Span span) {
  each_row(step, op, span, [&](int64_t r) {
    const int32_t periods = (step.batch.positions[r] + op.shift) / op.period;
    return 1.0f + op.beta * std::log(1.0f + static_cast<float>(periods));
  });
}

// The gate has one number for each row, or as many as x.
void sigmoid_gate(const Step& step, const quire_sigmoid_gate& op, Span span) {
  if (op.gate.dim != 1) {
    return each_pair(step, op.x, op.gate, op.out, span, [](F32x16 x, F32x16 gate) {
      return x / (1.0f + gemm::exponential(gate * -1.0f));
    });
  }
  each_row(step, op, span,
           [&](int64_t r) { return gemm::first_lane(sigmoid(one_of(step, op.gate, r))); });
}

void row_scale(const Step& step, const quire_row_scale& op, Span span) {
  each_row(step, op, span, [&](int64_t r) { return gemm::first_lane(one_of(step, op.factor, r)); });
}

void weigh(const Step& step, const quire_weigh& op, Span span) {
  const Vector& w = step.model.vectors[op.weight];
  if (w.size() == 1) {
    return each(step, op, span, [factor = w[0]](F32x16 x) { return x * factor; });
  }
  for (int64_t r = span.first; r < span.last; ++r) {
    by_vectors(op.out.dim, [&](int64_t i, int64_t n) {
      const F32x16 weight = load_some(w.data(), QUIRE_F32, i, n);
      store_some(step.row(op.out, r), op.out.dtype, i, n,
                 load_some(step.row(op.x, r), op.x.dtype, i, n) * weight);
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
void outliers(const Step& step, const quire_outliers& op, Span span) {
  for (int64_t r = span.first; r < span.last; ++r) {
    const uint8_t* x = step.row(op.x, r);
    F32x16 sum = {};
    by_vectors(op.x.dim, [&](int64_t i, int64_t n) { sum = sum + load_some(x, op.x.dtype, i, n); });
    const float mean = sum_lanes(sum) / op.x.dim;
    const float limit = mean + op.deviations * std::sqrt(mean_of_squares(x, op.x, mean));
    each(step, op, {r, r + 1},
         [limit](F32x16 v) { return gemm::activate<QUIRE_ACTIVATION_RELU>(v - limit); });
  }
}

void match_rms(const Step& step, const quire_match_rms& op, Span span) {
  each_row(step, op, span, [&](int64_t r) {
    const float own = std::max(mean_of_squares(step.row(op.x, r), op.x, 0.0f), op.eps);
    const float wanted = mean_of_squares(step.row(op.like, r), op.like, 0.0f);
    return std::sqrt(wanted) / std::sqrt(own);
  });
}

// Checks of what an op has besides x and out. Most have numbers alone, which may be any.
template <class Op>
void check_rest(const OpChecks& checks, const Op& op) {
  checks.require(op.x.dim == op.out.dim, "dims differ");
}

void check_rest(const OpChecks& checks, const quire_add& op) {
  checks.require(op.a.dim == op.out.dim && op.b.dim == op.out.dim, "dims differ");
}

void check_rest(const OpChecks& checks, const quire_glu& op) {
  checks.require(op.gate.dim == op.out.dim && op.up.dim == op.out.dim, "dims differ");
}

void check_rest(const OpChecks& checks, const quire_match_rms& op) {
  checks.require(op.x.dim == op.out.dim && op.like.dim == op.out.dim, "dims differ");
}

void check_rest(const OpChecks& checks, const quire_sigmoid_gate& op) {
  const bool is_one = op.gate.dim == 1;
  checks.require(op.x.dim == op.out.dim && (is_one || op.gate.dim == op.out.dim), "dims differ");
}

void check_rest(const OpChecks& checks, const quire_row_scale& op) {
  checks.require(op.x.dim == op.out.dim && op.factor.dim == 1, "dims differ");
}

void check_rest(const OpChecks& checks, const quire_between& op) {
  checks.require(op.x.dim == op.out.dim, "dims differ");
  for (const int32_t bound : {op.low, op.high}) checks.vector(bound, 1);
}

void check_rest(const OpChecks& checks, const quire_xielu& op) {
  checks.require(op.x.dim == op.out.dim, "dims differ");
  for (const int32_t alpha : {op.positive, op.negative}) checks.vector(alpha, 1);
}

void check_rest(const OpChecks& checks, const quire_weigh& op) {
  checks.require(op.x.dim == op.out.dim, "dims differ");
  if (checks.model().vectors[op.weight].size() != 1) checks.vector(op.weight, op.out.dim);
}

void check_rest(const OpChecks& checks, const quire_soft_cap& op) {
  checks.require(op.x.dim == op.out.dim && op.cap > 0, "dims or cap");
}

void check_rest(const OpChecks& checks, const quire_position_scale& op) {
  checks.require(op.x.dim == op.out.dim && op.period >= 1 && op.shift >= 0, "dims or period");
  checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "rows without positions");
}

template <class Op>
void check(const OpChecks& checks, const Op& op) {
  check_rest(checks, op);
}

template <class Op, void (*compute)(const Step&, const Op&, Span)>
void run(const Step& step, const Op& op, int32_t rows) {
  by_rows(step, step.rows(rows), op.out.dim, [&](Span span) { compute(step, op, span); });
}

template <class Op, void (*compute)(const Step&, const Op&, Span)>
OpKind pointwise() {
  return op_kind<Op, check<Op>, run<Op, compute>>();
}

const OpRegistration kKinds[] = {
    OpRegistration(pointwise<quire_act, act>()),
    OpRegistration(pointwise<quire_add, add>()),
    OpRegistration(pointwise<quire_between, between>()),
    OpRegistration(pointwise<quire_clamp, clamp>()),
    OpRegistration(pointwise<quire_glu, glu>()),
    OpRegistration(pointwise<quire_match_rms, match_rms>()),
    OpRegistration(pointwise<quire_outliers, outliers>()),
    OpRegistration(pointwise<quire_position_scale, position_scale>()),
    OpRegistration(pointwise<quire_row_scale, row_scale>()),
    OpRegistration(pointwise<quire_scale, scale>()),
    OpRegistration(pointwise<quire_sigmoid_gate, sigmoid_gate>()),
    OpRegistration(pointwise<quire_soft_cap, soft_cap>()),
    OpRegistration(pointwise<quire_weigh, weigh>()),
    OpRegistration(pointwise<quire_xielu, xielu>()),
};

}  // namespace
}  // namespace quire

// Elementwise ops that no fusion took into a neighbour.
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
    each(step, op, span, [](F32x16 a, F32x16 b) { return gemm::activate<kind>(a) * b; });
  } else {
    each(step, op, span, [](F32x16 a, F32x16) { return gemm::activate<kind>(a); });
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
  switch (static_cast<Activation>(op.activation)) {
    case Activation::kSilu:
      return activated<Activation::kSilu>(step, op, span);
    case Activation::kGelu:
      return activated<Activation::kGelu>(step, op, span);
    case Activation::kGeluTanh:
      return activated<Activation::kGeluTanh>(step, op, span);
    case Activation::kRelu:
      return activated<Activation::kRelu>(step, op, span);
    case Activation::kNone:
      return activated<Activation::kNone>(step, op, span);
  }
}

void check_pointwise(const OpChecks& checks, const quire_op& op) {
  const quire_pointwise& pointwise = op.u.pointwise;
  const bool binary =
      pointwise.kind == QUIRE_POINTWISE_ADD || pointwise.kind == QUIRE_POINTWISE_GLU;
  checks.require(pointwise.kind >= QUIRE_POINTWISE_ADD && pointwise.kind <= QUIRE_POINTWISE_SCALE,
                 "kind");
  checks.require(pointwise.activation >= QUIRE_ACT_NONE && pointwise.activation <= QUIRE_ACT_RELU,
                 "activation");
  checks.view(pointwise.a);
  checks.view(pointwise.out);
  checks.optional_view(pointwise.b);
  checks.require(!binary || pointwise.b.offset >= 0, "b is missing");
  checks.require(
      pointwise.a.dim == pointwise.out.dim && (!binary || pointwise.b.dim == pointwise.out.dim),
      "dims differ");
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

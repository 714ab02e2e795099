// Elementwise ops that no fusion took into a neighbour.
#include "linear/activation.h"
#include "ops/ops.h"
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

}  // namespace

void pointwise(const Step& step, const quire_pointwise& op, int32_t rows) {
  by_rows(step, step.rows(rows), op.out.dim, [&](Span span) { pointwise_rows(step, op, span); });
}

}  // namespace quire

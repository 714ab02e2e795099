// Elementwise ops that no fusion took into a neighbour.
#include "linear/activation.h"
#include "ops/ops.h"
#include "ops/vector.h"

namespace quire {
namespace {

template <class F>
void each(const Step& step, const quire_pointwise& op, int32_t rows, Worker& worker, F f) {
  const Span span = share(step.rows(rows), worker);
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
void activated(const Step& step, const quire_pointwise& op, int32_t rows, Worker& worker) {
  if (op.kind == QUIRE_POINTWISE_GLU) {
    each(step, op, rows, worker, [](F32x16 a, F32x16 b) { return gemm::activate<kind>(a) * b; });
  } else {
    each(step, op, rows, worker, [](F32x16 a, F32x16) { return gemm::activate<kind>(a); });
  }
}

}  // namespace

void pointwise(const Step& step, const quire_pointwise& op, int32_t rows, Worker& worker) {
  if (op.kind == QUIRE_POINTWISE_ADD) {
    each(step, op, rows, worker, [](F32x16 a, F32x16 b) { return a + b; });
    return;
  }
  if (op.kind == QUIRE_POINTWISE_SCALE) {
    const float factor = op.factor;
    each(step, op, rows, worker, [factor](F32x16 a, F32x16) { return a * factor; });
    return;
  }
  switch (static_cast<Activation>(op.activation)) {
    case Activation::kSilu:
      return activated<Activation::kSilu>(step, op, rows, worker);
    case Activation::kGelu:
      return activated<Activation::kGelu>(step, op, rows, worker);
    case Activation::kGeluTanh:
      return activated<Activation::kGeluTanh>(step, op, rows, worker);
    case Activation::kRelu:
      return activated<Activation::kRelu>(step, op, rows, worker);
    case Activation::kNone:
      return activated<Activation::kNone>(step, op, rows, worker);
  }
}

}  // namespace quire

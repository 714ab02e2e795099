// RMS and layer norm over whole rows, with the residual that some models add after the norm.
#include <cmath>

#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

struct Moments {
  float shift;  // subtracted from x
  float scale;  // multiplies the difference
};

// Two sums, of the vectors at even and at odd places: an addition waits for the one before it. They
// have names, because gcc keeps an array that is indexed in memory.
Moments rms_moments(const void* x, int32_t dtype, int64_t dim, float eps) {
  F32x16 even = {};
  F32x16 odd = {};
  const auto add = [=](F32x16 sum, int64_t i, int64_t n) {
    const F32x16 v = load_some(x, dtype, i, n);
    return fma(v, v, sum);
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    even = add(even, i, kLanes);
    odd = add(odd, i + kLanes, kLanes);
  }
  if (i < dim) even = add(even, i, dim - i);
  if (i + kLanes < dim) odd = add(odd, i + kLanes, dim - i - kLanes);
  return {0.0f, 1.0f / std::sqrt(sum_lanes(even + odd) / dim + eps)};
}

// Two passes: the variance of rows far from 0 would drown in mean(x^2) - mean(x)^2.
Moments layer_moments(const void* x, int32_t dtype, int64_t dim, float eps) {
  F32x16 sum = {};
  by_vectors(dim, [&](int64_t i, int64_t n) { sum = sum + load_some(x, dtype, i, n); });
  const float mean = sum_lanes(sum) / dim;
  F32x16 squares = {};
  by_vectors(dim, [&](int64_t i, int64_t n) {
    const F32x16 v = gemm::first_lanes(load_some(x, dtype, i, n) - mean, n, 0.0f);
    squares = fma(v, v, squares);
  });
  return {mean, 1.0f / std::sqrt(sum_lanes(squares) / dim + eps)};
}

void norm_rows(const Step& step, const quire_norm& op, Span span) {
  const float* weight = step.vector(op.weight);
  const float* bias = step.vector(op.bias);
  const int64_t dim = op.x.dim;
  for (int64_t r = span.first; r < span.last; ++r) {
    const uint8_t* x = step.row(op.x, r);
    // The hardware does not look beyond the page, which may be a row.
    if (r + 1 < span.last) {
      fetch_lines(step.row(op.x, r + 1), step.row_bytes(op.x));
      fetch_lines_to_write(step.row(op.out, r + 1), step.row_bytes(op.out));
    }
    const Moments m = op.kind == QUIRE_NORM_KIND_RMS ? rms_moments(x, op.x.dtype, dim, op.eps)
                                                : layer_moments(x, op.x.dtype, dim, op.eps);
    const uint8_t* residual = op.residual.offset >= 0 ? step.row(op.residual, r) : nullptr;
    uint8_t* out = step.row(op.out, r);
    by_vectors(dim, [=, x_dtype = op.x.dtype, out_dtype = op.out.dtype,
                     residual_dtype = op.residual.dtype](int64_t i, int64_t n) {
      F32x16 v = (load_some(x, x_dtype, i, n) - m.shift) * m.scale;
      if (weight) v = v * load_some(weight, QUIRE_F32, i, n);
      if (bias) v = v + load_some(bias, QUIRE_F32, i, n);
      if (residual) v = v + load_some(residual, residual_dtype, i, n);
      store_some(out, out_dtype, i, n, v);
    });
  }
}

void check_norm(const OpChecks& checks, const quire_norm& norm) {
  checks.vector(norm.weight, norm.x.dim);
  checks.vector(norm.bias, norm.x.dim);
  checks.require(norm.x.dim == norm.out.dim, "dims differ");
}

void run_norm(const Step& step, const quire_norm& norm, int32_t rows) {
  by_rows(step, step.rows(rows), norm.x.dim, [&](Span span) { norm_rows(step, norm, span); });
}

const OpRegistration kNorm(op_kind<quire_norm, check_norm, run_norm>());

}  // namespace
}  // namespace quire

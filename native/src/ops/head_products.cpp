// Products of each head with a matrix of its own, and heads joined from two parts: what moves the
// matrices of keys and values to the queries' side in latent attention.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

int64_t item_bytes(const quire_view& view) { return view.dtype == QUIRE_F32 ? 4 : 2; }

// Heads are as wide as the first matrix.
int32_t num_heads(const quire_head_linear& op, const PackedMatrix& first) {
  return static_cast<int32_t>(op.x.dim / first.k);
}

void check_head_linear(const OpChecks& checks, const quire_head_linear& op) {
  const int32_t heads = num_heads(op, checks.matrix(op.weight));
  checks.require(heads >= 1, "no heads");
  for (int32_t head = 0; head < heads; ++head) {
    const PackedMatrix& matrix = checks.matrix(op.weight + head);
    checks.require(matrix.k * heads == op.x.dim && matrix.n * heads == op.out.dim && !matrix.glu,
                   "matrix of another size");
  }
}

void reserve_head_linear(const Model& model, const quire_head_linear& op, OpNeeds& needs) {
  const PackedMatrix& matrix = model.matrices[op.weight];
  const size_t each = round_up(
      linear_scratch_bytes(matrix.format, matrix.k, model.spec.max_num_tokens), kCacheLine);
  needs.scratch_bytes = std::max(needs.scratch_bytes, num_heads(op, matrix) * each);
}

void run_head_linear(const Step& step, const quire_head_linear& op, int32_t kind) {
  const int64_t rows = step.rows(kind);
  if (rows == 0) return;  // no request of the step needs logits
  const int32_t heads = num_heads(op, step.model.matrices[op.weight]);
  std::vector<LinearArgs> products(heads);
  uint8_t* scratch = step.model.linear_scratch->data();
  for (int32_t head = 0; head < heads; ++head) {
    const PackedMatrix& matrix = step.model.matrices[op.weight + head];
    LinearArgs& args = products[head];
    args = {};
    args.weight = &matrix;
    args.x = step.row(op.x, 0) + head * matrix.k * item_bytes(op.x);
    args.x_dtype = static_cast<DType>(op.x.dtype);
    args.m = rows;
    args.x_stride = op.x.stride;
    args.scale = 1.0f;
    args.out = step.row(op.out, 0) + head * matrix.n * item_bytes(op.out);
    args.out_dtype = static_cast<DType>(op.out.dtype);
    args.out_stride = op.out.stride;
    args.scratch = scratch;
    scratch += round_up(linear_scratch_bytes(matrix.format, matrix.k, rows), kCacheLine);
  }
  linear_together(products.data(), heads, step.model.pool);
}

void check_join(const OpChecks& checks, const quire_join_heads& op) {
  checks.require(op.num_heads >= 1 && op.a.dim % op.num_heads == 0 && op.b.dim % op.num_heads == 0,
                 "heads do not divide");
  checks.require(op.a.dim + op.b.dim == op.out.dim, "dims differ");
}

void copy_numbers(const Step& step, const quire_view& from, int64_t first, const quire_view& to,
                  int64_t place, int64_t count, int64_t row) {
  for (int64_t i = 0; i < count; i += kLanes) {
    store_some(step.row(to, row), to.dtype, place + i, count - i,
               load_some(step.row(from, row), from.dtype, first + i, count - i));
  }
}

void run_join(const Step& step, const quire_join_heads& op, int32_t rows) {
  const int64_t a = op.a.dim / op.num_heads;
  const int64_t b = op.b.dim / op.num_heads;
  by_rows(step, step.rows(rows), op.out.dim, [&](Span span) {
    for (int64_t row = span.first; row < span.last; ++row) {
      for (int64_t head = 0; head < op.num_heads; ++head) {
        copy_numbers(step, op.a, head * a, op.out, head * (a + b), a, row);
        copy_numbers(step, op.b, head * b, op.out, head * (a + b) + a, b, row);
      }
    }
  });
}

const OpRegistration kHeadLinear(op_kind<quire_head_linear, check_head_linear, run_head_linear,
                                         look_at_out<quire_head_linear>, reserve_head_linear>());
const OpRegistration kJoin(op_kind<quire_join_heads, check_join, run_join>());

}  // namespace
}  // namespace quire

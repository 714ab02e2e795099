// Products of each head with a matrix of its own, and heads joined from two parts: what moves the
// matrices of keys and values to the queries' side in latent attention.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/by_rows.h"
#include "ops/op_checks.h"
#include "ops/op_kind.h"
#include "runtime/finite_watch.h"
#include "simd/vector.h"

namespace quire {
namespace {

int64_t item_bytes(const quire_view& view) { return view.dtype == QUIRE_F32 ? 4 : 2; }

void check_head_linear(const OpChecks& checks, const quire_op& record) {
  const quire_head_linear& op = record.u.head_linear;
  checks.view(op.x);
  checks.view(op.out);
  checks.require(op.num_heads >= 1, "no heads");
  for (int32_t head = 0; head < op.num_heads; ++head) {
    const PackedMatrix& matrix = checks.matrix(op.matrix + head);
    checks.require(
        matrix.k * op.num_heads == op.x.dim && matrix.n * op.num_heads == op.out.dim && !matrix.glu,
        "matrix of another size");
  }
}

void reserve_head_linear(const Model& model, const quire_op& record, OpNeeds& needs) {
  const quire_head_linear& op = record.u.head_linear;
  const PackedMatrix& matrix = model.matrices[op.matrix];
  const size_t each = round_up(
      linear_scratch_bytes(matrix.format, matrix.k, model.spec.max_num_tokens), kCacheLine);
  needs.scratch_bytes = std::max(needs.scratch_bytes, op.num_heads * each);
}

void run_head_linear(const Step& step, const quire_op& record) {
  const quire_head_linear& op = record.u.head_linear;
  const int64_t rows = step.rows(record.rows);
  if (rows == 0) return;  // no request of the step needs logits
  std::vector<LinearArgs> products(op.num_heads);
  uint8_t* scratch = step.model.linear_scratch->data();
  for (int32_t head = 0; head < op.num_heads; ++head) {
    const PackedMatrix& matrix = step.model.matrices[op.matrix + head];
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
  linear_together(products.data(), op.num_heads, step.model.pool);
}

void look_at_head_linear(FiniteWatch& watch, const quire_op& op) {
  watch.look_at_rows(op.u.head_linear.out, op.rows);
}

void check_join(const OpChecks& checks, const quire_op& record) {
  const quire_join& op = record.u.join;
  for (const quire_view* view : {&op.a, &op.b, &op.out}) checks.view(*view);
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

void run_join(const Step& step, const quire_op& record) {
  const quire_join& op = record.u.join;
  const int64_t a = op.a.dim / op.num_heads;
  const int64_t b = op.b.dim / op.num_heads;
  by_rows(step, step.rows(record.rows), op.out.dim, [&](Span span) {
    for (int64_t row = span.first; row < span.last; ++row) {
      for (int64_t head = 0; head < op.num_heads; ++head) {
        copy_numbers(step, op.a, head * a, op.out, head * (a + b), a, row);
        copy_numbers(step, op.b, head * b, op.out, head * (a + b) + a, b, row);
      }
    }
  });
}

void look_at_join(FiniteWatch& watch, const quire_op& op) {
  watch.look_at_rows(op.u.join.out, op.rows);
}

const OpRegistration kHeadLinear({QUIRE_OP_HEAD_LINEAR, "head_linear", check_head_linear,
                                  run_head_linear, look_at_head_linear, reserve_head_linear});
const OpRegistration kJoin({QUIRE_OP_JOIN, "join", check_join, run_join, look_at_join});

}  // namespace
}  // namespace quire

// The op of a matrix product with its epilogue; the product itself is linear/'s.
#include "linear/linear.h"

#include <algorithm>

#include "adapters/adapter.h"
#include "ops/kernel.h"

namespace quire {
namespace {

void check_linear(const OpChecks& checks, const quire_linear& linear) {
  const PackedMatrix& weight = checks.matrix(linear.weight);
  checks.vector(linear.bias, weight.n);
  checks.require(linear.x.dim == weight.k, "x is not as wide as the weight");
  checks.require(linear.out.dim == (weight.glu ? weight.n / 2 : weight.n), "out has another width");
  checks.require(linear.residual.offset < 0 || linear.residual.dtype == QUIRE_F32,
                 "the residual is not float32");
}

void run_linear(const Step& step, const quire_linear& op, int32_t rows) {
  LinearArgs args{};
  args.weight = &step.model.matrices[op.weight];
  args.x = step.row(op.x, 0);
  args.x_dtype = static_cast<DType>(op.x.dtype);
  args.m = step.rows(rows);
  args.x_stride = op.x.stride;
  args.bias = step.vector(op.bias);
  if (op.residual.offset >= 0) {
    args.residual = step.f32_row(op.residual, 0);
    args.residual_stride = op.residual.stride;
  }
  args.activation = static_cast<Activation>(op.activation);
  args.scale = op.scale;
  args.out = step.row(op.out, 0);
  args.out_dtype = static_cast<DType>(op.out.dtype);
  args.out_stride = op.out.stride;
  args.scratch = step.model.linear_scratch->data();
  const ProductRows own{op.weight, rows, 0, nullptr};
  if (args.m > 0) linear_with_adapters(step, &own, &args, 1);
}

void reserve_linear(const Model& model, const quire_linear& op, OpNeeds& needs) {
  const PackedMatrix& weight = model.matrices[op.weight];
  const size_t bytes = linear_scratch_bytes(weight.format, weight.k, model.spec.max_num_tokens);
  needs.scratch_bytes = std::max(needs.scratch_bytes, bytes);
}

const OpRegistration kLinear(op_kind<quire_linear, check_linear, run_linear,
                                     look_at_out<quire_linear>, reserve_linear>());

}  // namespace
}  // namespace quire

// The gated delta rule and Mamba 2: what their rows bring to a `ChunkedHead`.
#include <cmath>

#include "ops/kernel.h"
#include "recurrent/chunked.h"

namespace quire {
namespace {

constexpr float kNormEps = 1e-6f;

ChunkShape shape_of(const quire_gated_delta& op) {
  return {op.k.dim / op.num_key_heads, op.v.dim / op.num_heads, op.a.dim / op.num_heads, true};
}

ChunkShape shape_of(const quire_ssd& op) {
  return {op.b.dim / op.num_groups, op.x.dim / op.num_heads, 1, false};
}

float* scratch_of(const Step& step, const ChunkShape& shape, int worker) {
  const int64_t floats = (shape.scratch_floats() + kLanes - 1) / kLanes * kLanes;
  return reinterpret_cast<float*>(step.model.linear_scratch->data()) + worker * floats;
}

template <class Op>
void reserve(const Model& model, const Op& op, OpNeeds& needs) {
  const int64_t floats = (shape_of(op).scratch_floats() + kLanes - 1) / kLanes * kLanes;
  needs.scratch_bytes =
      std::max<size_t>(needs.scratch_bytes, model.pool.size() * floats * sizeof(float));
}

void store_result(const Step& step, const quire_view& out, int64_t row, int64_t head,
                  const float* result, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    store_some(step.row(out, row), out.dtype, head * count + i, count - i,
               load_some(result, QUIRE_F32, i, count - i));
  }
}

float sigmoid_of(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void scale(float* row, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) row[i] *= factor;
}

void run_delta(const Step& step, const quire_gated_delta& op, int32_t) {
  const ChunkShape shape = shape_of(op);
  const int64_t dk = shape.key_dim;
  each_piece(step, op.state, [&](int worker, const RequestRows& rows, int64_t head, float* piece) {
    const int64_t key_head =
        op.is_tiled ? head % op.num_key_heads : head * op.num_key_heads / op.num_heads;
    const float rate = -std::exp(step.vector(op.a_log)[head]);
    const float* dt_bias = step.vector(op.dt_bias) + head * shape.decay_dim;
    const auto load = [&](int64_t row, ChunkRow& in) {
      load_row(step, op.q, row, key_head * dk, dk, in.q);
      load_row(step, op.k, row, key_head * dk, dk, in.k);
      load_row(step, op.v, row, head * shape.value_dim, shape.value_dim, in.v);
      load_row(step, op.a, row, head * shape.decay_dim, shape.decay_dim, in.g);
      load_row(step, op.b, row, head, 1, &in.beta);
      scale(in.k, dk, 1.0f / std::sqrt(dot(in.k, in.k, dk) + kNormEps));
      const float length = std::sqrt(dot(in.q, in.q, dk) + kNormEps);
      scale(in.q, dk, 1.0f / (length * std::sqrt(static_cast<float>(dk))));
      for (int64_t d = 0; d < shape.decay_dim; ++d) {
        in.g[d] = rate * softplus_of(in.g[d] + dt_bias[d]);
      }
      in.beta = sigmoid_of(in.beta);
    };
    ChunkedHead(shape, piece, scratch_of(step, shape, worker))
        .work(rows, load, [&](int64_t row, const float* result) {
          store_result(step, op.out, row, head, result, shape.value_dim);
        });
  });
}

void run_ssd(const Step& step, const quire_ssd& op, int32_t) {
  const ChunkShape shape = shape_of(op);
  const int64_t ds = shape.key_dim;
  each_piece(step, op.state, [&](int worker, const RequestRows& rows, int64_t head, float* piece) {
    const int64_t group = head * op.num_groups / op.num_heads;
    const float rate = -std::exp(step.vector(op.a_log)[head]);
    const float dt_bias = step.vector(op.dt_bias)[head];
    const float d = step.vector(op.d)[head];
    const auto load = [&](int64_t row, ChunkRow& in) {
      load_row(step, op.c, row, group * ds, ds, in.q);
      load_row(step, op.b, row, group * ds, ds, in.k);
      load_row(step, op.x, row, head * shape.value_dim, shape.value_dim, in.v);
      float dt;
      load_row(step, op.dt, row, head, 1, &dt);
      dt = std::min(std::max(softplus_of(dt + dt_bias), op.dt_min), op.dt_max);
      *in.g = rate * dt;
      scale(in.v, shape.value_dim, dt);
    };
    ChunkedHead(shape, piece, scratch_of(step, shape, worker))
        .work(rows, load, [&](int64_t row, float* result) {
          for (int64_t i = 0; i < shape.value_dim; i += kLanes) {
            const int64_t n = shape.value_dim - i;
            const F32x16 x = load_some(step.row(op.x, row), op.x.dtype, head * shape.value_dim + i, n);
            store_some(result, QUIRE_F32, i, n, fma(splat(d), x, load_some(result, QUIRE_F32, i, n)));
          }
          store_result(step, op.out, row, head, result, shape.value_dim);
        });
  });
}

void check_heads(const OpChecks& checks, int64_t heads, int64_t shared) {
  checks.require(heads >= 1 && shared >= 1 && heads % shared == 0, "heads do not divide");
  checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "rows without positions");
}

void check_delta(const OpChecks& checks, const quire_gated_delta& op) {
  check_heads(checks, op.num_heads, op.num_key_heads);
  checks.require(op.q.dim == op.k.dim && op.k.dim % op.num_key_heads == 0 &&
                     op.v.dim == op.out.dim && op.v.dim % op.num_heads == 0 &&
                     op.b.dim == op.num_heads && op.a.dim % op.num_heads == 0,
                 "dims differ");
  const ChunkShape shape = shape_of(op);
  checks.require(shape.decay_dim == 1 || shape.decay_dim == shape.key_dim, "decays");
  checks.vector(op.a_log, op.num_heads);
  checks.vector(op.dt_bias, op.a.dim);
  check_state(checks, op.state, op.num_heads, shape.piece_floats());
}

void check_ssd(const OpChecks& checks, const quire_ssd& op) {
  check_heads(checks, op.num_heads, op.num_groups);
  checks.require(op.x.dim == op.out.dim && op.x.dim % op.num_heads == 0 &&
                     op.dt.dim == op.num_heads && op.b.dim == op.c.dim &&
                     op.b.dim % op.num_groups == 0,
                 "dims differ");
  for (const int32_t vector : {op.a_log, op.dt_bias, op.d}) checks.vector(vector, op.num_heads);
  check_state(checks, op.state, op.num_heads, shape_of(op).piece_floats());
}

const OpRegistration kDelta(op_kind<quire_gated_delta, check_delta, run_delta,
                                    look_at_out<quire_gated_delta>, reserve<quire_gated_delta>>());
const OpRegistration kSsd(
    op_kind<quire_ssd, check_ssd, run_ssd, look_at_out<quire_ssd>, reserve<quire_ssd>>());

}  // namespace
}  // namespace quire

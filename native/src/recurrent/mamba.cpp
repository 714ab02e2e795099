// Mamba 1: every channel and number of a state decays in its own way, token after token.
#include <algorithm>
#include <cmath>

#include "ops/kernel.h"
#include "recurrent/chunked.h"

namespace quire {
namespace {

constexpr float kLog2E = 1.44269504088896f;

int64_t piece_channels(const quire_mamba& op) {
  return std::min<int64_t>(QUIRE_STATE_CHANNELS, op.x.dim);
}

// One row of one channel: moves its state [S] on, and returns state . c.
float step_channel(float* state, const float* a_log, float dt, float x, const float* b,
                   const float* c, int64_t size) {
  F32x16 sum = {};
  const F32x16 grown = splat(dt * x);
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t n = size - i;
    const F32x16 rate = gemm::exponential(load_some(a_log, QUIRE_F32, i, n));
    const F32x16 decay = exp2_nonpositive(rate * (-dt * kLog2E));
    const F32x16 next = fma(decay, load_some(state, QUIRE_F32, i, n),
                            grown * load_some(b, QUIRE_F32, i, n));
    store_some(state, QUIRE_F32, i, n, next);
    sum = fma(next, load_some(c, QUIRE_F32, i, n), sum);
  }
  return sum_lanes(sum);
}

float number(const Step& step, const quire_view& view, int64_t row, int64_t i) {
  float value;
  load_row(step, view, row, i, 1, &value);
  return value;
}

void run_mamba(const Step& step, const quire_mamba& op, int32_t) {
  const int64_t size = op.b.dim;
  const int64_t channels = piece_channels(op);
  each_piece(step, op.state, [&](int, const RequestRows& rows, int64_t piece, float* states) {
    float* anchors = states + channels * size;
    const int64_t first = piece * channels;
    const int64_t count = std::min(channels, op.x.dim - first);
    if (rows.position % kStateChunk == 0) std::copy_n(anchors, channels * size, states);
    for (int64_t t = 0; t < rows.count; ++t) {
      const int64_t row = rows.row + t;
      const float* b = step.f32_row(op.b, row);
      const float* c = step.f32_row(op.c, row);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t channel = first + i;
        const float x = number(step, op.x, row, channel);
        const float dt =
            softplus_of(number(step, op.dt, row, channel) + step.vector(op.dt_bias)[channel]);
        const float* a_log = step.vector(op.a_log) + channel * size;
        const float y = step_channel(states + i * size, a_log, dt, x, b, c, size);
        const float sum = std::fma(step.vector(op.d)[channel], x, y);
        store_some(step.row(op.out, row), op.out.dtype, channel, 1, splat(sum));
      }
      if ((rows.position + t + 1) % kStateChunk == 0) {
        std::copy_n(states, channels * size, anchors);
      }
    }
  });
}

void check_mamba(const OpChecks& checks, const quire_mamba& op) {
  checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "rows without positions");
  checks.require(op.x.dim == op.out.dim && op.x.dim == op.dt.dim && op.b.dim == op.c.dim,
                 "dims differ");
  checks.require(op.b.dtype == QUIRE_F32 && op.c.dtype == QUIRE_F32, "b and c are not float32");
  checks.vector(op.a_log, int64_t{op.x.dim} * op.b.dim);
  for (const int32_t vector : {op.dt_bias, op.d}) checks.vector(vector, op.x.dim);
  const int64_t channels = piece_channels(op);
  check_state(checks, op.state, (op.x.dim + channels - 1) / channels, 2 * channels * op.b.dim);
}

const OpRegistration kMamba(op_kind<quire_mamba, check_mamba, run_mamba>());

}  // namespace
}  // namespace quire

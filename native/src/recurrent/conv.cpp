// The causal convolution of recurrent layers: every channel alone, over the last few tokens.
#include <algorithm>

#include "linear/activation.h"
#include "ops/kernel.h"
#include "recurrent/state.h"
#include "simd/vector.h"

namespace quire {
namespace {

constexpr int64_t kChannels = QUIRE_STATE_CHANNELS;
constexpr int64_t kMaxWidth = 64;

int64_t ring_rows(const quire_causal_conv& op) { return kStateChunk + op.width - 1; }
int64_t piece_channels(const quire_causal_conv& op) { return std::min<int64_t>(kChannels, op.x.dim); }

// One piece of a request: its channels of all rows, then of the stored rows.
class Piece {
 public:
  Piece(const Step& step, const quire_causal_conv& op, const RequestRows& rows, int64_t piece, float* ring)
      : step_(step),
        op_(op),
        rows_(rows),
        first_(piece * piece_channels(op)),
        count_(std::min(piece_channels(op), op.x.dim - first_)),
        stride_(piece_channels(op)),
        ring_(ring) {
    const float* weight = step.vector(op.weight) + first_ * op.width;
    for (int64_t c = 0; c < count_; ++c) {
      for (int64_t tap = 0; tap < op.width; ++tap) taps_[tap][c] = weight[c * op.width + tap];
    }
  }

  template <Activation kind>
  void work() {
    for (int64_t t = 0; t < rows_.count; ++t) row<kind>(t);
    const int64_t kept = std::min(rows_.count, ring_rows(op_));
    for (int64_t t = rows_.count - kept; t < rows_.count; ++t) {
      float* place = ring_row(rows_.position + t);
      for (int64_t i = 0; i < count_; i += kLanes) {
        store_some(place, QUIRE_F32, i, count_ - i, load_x(t, i));
      }
    }
  }

 private:
  float* ring_row(int64_t position) const {
    return ring_ + position % ring_rows(op_) * stride_;
  }
  F32x16 load_x(int64_t t, int64_t i) const {
    return load_some(step_.row(op_.x, rows_.row + t), op_.x.dtype, first_ + i, count_ - i);
  }

  // Taps are added from the oldest token to the newest.
  template <Activation kind>
  void row(int64_t t) {
    uint8_t* out = step_.row(op_.out, rows_.row + t);
    const float* bias = step_.vector(op_.bias);
    for (int64_t i = 0; i < count_; i += kLanes) {
      const int64_t n = count_ - i;
      F32x16 sum = bias == nullptr ? F32x16{} : load_some(bias, QUIRE_F32, first_ + i, n);
      for (int64_t tap = 0; tap < op_.width; ++tap) {
        const int64_t back = t - (op_.width - 1) + tap;  // counted in the step
        const int64_t position = rows_.position + back;
        if (position < 0) continue;
        const F32x16 x = back >= 0 ? load_x(back, i)
                                   : load_some(ring_row(position), QUIRE_F32, i, n);
        sum = fma(load_f32(taps_[tap] + i), x, sum);
      }
      store_some(out, op_.out.dtype, first_ + i, n, gemm::activate<kind>(sum));
    }
  }

  const Step& step_;
  const quire_causal_conv& op_;
  const RequestRows& rows_;
  const int64_t first_;
  const int64_t count_;
  const int64_t stride_;
  float* const ring_;
  float taps_[kMaxWidth][kChannels];
};

template <Activation kind>
void convolve(const Step& step, const quire_causal_conv& op) {
  each_piece(step, op.state, [&](int, const RequestRows& rows, int64_t piece, float* ring) {
    Piece(step, op, rows, piece, ring).work<kind>();
  });
}

void check_conv(const OpChecks& checks, const quire_causal_conv& conv) {
  checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "rows without positions");
  checks.require(conv.x.dim == conv.out.dim, "dims differ");
  checks.require(conv.width >= 1 && conv.width <= kMaxWidth, "width is not from 1 to 64");
  checks.vector(conv.weight, int64_t{conv.x.dim} * conv.width);
  checks.vector(conv.bias, conv.x.dim);
  checks.require(conv.act == QUIRE_ACTIVATION_IDENTITY || conv.act == QUIRE_ACTIVATION_SILU,
                 "act is neither identity nor silu");
  const int64_t channels = piece_channels(conv);
  check_state(checks, conv.state, (conv.x.dim + channels - 1) / channels,
              ring_rows(conv) * channels);
}

void run_conv(const Step& step, const quire_causal_conv& op, int32_t) {
  if (op.act == QUIRE_ACTIVATION_SILU) return convolve<QUIRE_ACTIVATION_SILU>(step, op);
  convolve<QUIRE_ACTIVATION_IDENTITY>(step, op);
}

const OpRegistration kConv(op_kind<quire_causal_conv, check_conv, run_conv>());

}  // namespace
}  // namespace quire

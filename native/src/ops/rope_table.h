// cos and sin of the rotary embedding: by position, of which a row is computed at its first use, and
// of the tokens of a step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "quire.h"
#include "runtime/memory.h"
#include "threads/pool.h"

namespace quire {

// Row p is [num_freqs] cos then [num_freqs] sin, both times `scale`. The angle is a float32
// product, as in the models' own code; its cos and sin are exact.
class RopeTable {
 public:
  RopeTable(const double* inv_freq, int32_t num_freqs, float scale, bool interleaved,
            int32_t max_positions)
      : interleaved_(interleaved),
        inv_freq_(inv_freq, inv_freq + num_freqs),
        scale_(scale),
        known_(max_positions, 0),
        rows_(sizeof(float) * 2 * num_freqs * static_cast<size_t>(max_positions)) {
    missing_.reserve(max_positions);
  }

  int32_t num_freqs() const { return static_cast<int32_t>(inv_freq_.size()); }
  bool interleaved() const { return interleaved_; }
  int64_t most_bytes() const {
    const int64_t mixed = mixed_ ? mixed_->most_bytes() : 0;
    return rows_.most_bytes() + mixed +
           static_cast<int64_t>(known_.size() * (1 + sizeof(int32_t)));
  }
  // Of a token of the step.
  const float* cos(int64_t token) const {
    return is_mixed_ ? mixed_row(token) : row(positions_[token]);
  }
  const float* sin(int64_t token) const { return cos(token) + num_freqs(); }

  // Frequencies are turned by positions of several axes. Throws for an axis that does not exist.
  void set_axes(const int32_t* axes, int64_t max_num_tokens) {
    for (int32_t i = 0; i < num_freqs(); ++i) {
      if (axes[i] < 0 || axes[i] >= QUIRE_MAX_AXES) throw std::invalid_argument("rope: axis");
    }
    axes_.assign(axes, axes + num_freqs());
    mixed_ = std::make_unique<Reservation>(sizeof(float) * 2 * num_freqs() *
                                           static_cast<size_t>(max_num_tokens));
  }
  // Axes of the positions that it needs.
  int32_t num_axes() const {
    return axes_.empty() ? 0 : *std::max_element(axes_.begin(), axes_.end()) + 1;
  }

  // Takes the positions of a step's tokens; they are read until its end.
  void begin_step(const quire_batch& batch, Pool& pool) {
    positions_ = batch.positions;
    is_mixed_ = !axes_.empty() && batch.axis_positions;
    if (!is_mixed_) return fill(positions_, batch.num_tokens, pool);
    fill(batch.axis_positions, int64_t{batch.num_tokens} * batch.num_axes, pool);
    pool.each(batch.num_tokens, [&](int64_t t) {
      mix(batch.axis_positions + t * batch.num_axes, mixed_row(t));
    });
  }

 private:
  // Fills the rows of these positions, each of them once.
  void fill(const int32_t* positions, int64_t count, Pool& pool) {
    missing_.clear();
    for (int64_t t = 0; t < count; ++t) {
      if (known_[positions[t]]) continue;
      known_[positions[t]] = 1;
      missing_.push_back(positions[t]);
    }
    pool.each(static_cast<int64_t>(missing_.size()), [&](int64_t i) { fill_row(missing_[i]); });
  }
  // The row of a token whose positions are `positions` [num_axes].
  void mix(const int32_t* positions, float* out) const {
    const int32_t n = num_freqs();
    for (int32_t i = 0; i < n; ++i) {
      const float* from = row(positions[axes_[i]]);
      out[i] = from[i];
      out[n + i] = from[n + i];
    }
  }
  float* mixed_row(int64_t token) const {
    return reinterpret_cast<float*>(mixed_->data()) + int64_t{2} * num_freqs() * token;
  }
  float* row(int32_t position) const {
    return reinterpret_cast<float*>(rows_.data()) + int64_t{2} * num_freqs() * position;
  }
  void fill_row(int32_t position) {
    float* cosines = row(position);
    float* sines = cosines + num_freqs();
    for (int32_t i = 0; i < num_freqs(); ++i) {
      const double angle = static_cast<float>(position) * inv_freq_[i];
      cosines[i] = static_cast<float>(std::cos(angle) * scale_);
      sines[i] = static_cast<float>(std::sin(angle) * scale_);
    }
  }

  bool interleaved_;
  std::vector<float> inv_freq_;
  double scale_;
  std::vector<uint8_t> known_;
  std::vector<int32_t> missing_;
  Reservation rows_;
  std::vector<int32_t> axes_;           // by frequency; empty: there is one axis
  std::unique_ptr<Reservation> mixed_;  // rows of the step's tokens, if there are axes
  const int32_t* positions_ = nullptr;
  bool is_mixed_ = false;
};

}  // namespace quire

// cos and sin of the rotary embedding by position; a row is computed at the position's first use.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

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
    return rows_.most_bytes() + static_cast<int64_t>(known_.size() * (1 + sizeof(int32_t)));
  }
  const float* cos(int32_t position) const { return row(position); }
  const float* sin(int32_t position) const { return row(position) + num_freqs(); }

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

 private:
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
};

}  // namespace quire

// Values that are not finite, in a cache of floating-point numbers. The weights of a row for tokens
// that it does not see are zeros, and 0 * NaN is NaN: such a token would otherwise
// change the tokens before it, of its own request and of those that share its blocks.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention/kernels/kernel.h"
#include "attention/softmax.h"
#include "runtime/kv_cache.h"
#include "simd/vector.h"

namespace quire {

// Token t's values d .. d + 15 in a group of a cache of floating-point numbers.
QUIRE_INLINE F32x16 values_of_token(const KvSide& side, const uint8_t* group, int t, int64_t d) {
  if (side.dtype == QUIRE_F32) {
    return gemm::load<F32x16>(group + (t * int64_t{side.padded_dim} + d) * 4);
  }
  const U32x16 pairs = gemm::load<U32x16>(group + (t / 2 * int64_t{side.padded_dim} + d) * 4);
  return gemm::as<F32x16>(t % 2 == 0 ? pairs << 16 : pairs & 0xffff0000u);
}

// Makes token t's values zeros.
inline void clear_values_of_token(const KvSide& side, uint8_t* group, int t) {
  const int64_t dim = side.padded_dim;
  if (side.dtype == QUIRE_F32) {
    std::memset(group + t * dim * 4, 0, dim * 4);
    return;
  }
  uint16_t* pairs = reinterpret_cast<uint16_t*>(group);
  for (int64_t d = 0; d < dim; ++d) pairs[(t / 2 * dim + d) * 2 + t % 2] = 0;
}

// The tokens of a chunk whose values are not finite.
class BadValues {
 public:
  bool any() const { return any_; }

  // Whether all of a row's results are finite.
  static bool all_finite(const float* row, int64_t dim) {
    gemm::Extent extent;
    for (int64_t d = 0; d < dim; d += kLanes) extent.add(load_f32(row + d));
    return extent.bad() == 0.0f;
  }

  // Looks at the values of the chunk's groups. Those with such tokens are replaced by copies in
  // `room`, of a whole chunk's V, that have zeros there.
  void hide(const KvSide& side, uint8_t* room, ChunkView& view) {
    for (int g = view.first; g < view.last; ++g) {
      uint8_t* copy = room + g * side.group_bytes;
      for (int t = 0; t < kGroup; ++t) {
        if (is_finite(side, view.values[g], t)) continue;
        if (view.values[g] != copy) std::memcpy(copy, view.values[g], side.group_bytes);
        view.values[g] = copy;
        clear_values_of_token(side, copy, t);
        is_bad_[g * kGroup + t] = any_ = true;
      }
    }
  }

  // Sets a row's results to NaN if it sees such a token.
  void set_nan(Visible seen, float* row, int64_t dim) const {
    const bool* first = is_bad_ + seen.low;
    if (seen.low > seen.high || !std::count(first, is_bad_ + seen.high + 1, true)) return;
    std::fill_n(row, dim, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  static bool is_finite(const KvSide& side, const uint8_t* group, int t) {
    gemm::Extent extent;
    for (int64_t d = 0; d < side.padded_dim; d += kLanes) {
      extent.add(values_of_token(side, group, t, d));
    }
    return extent.bad() == 0.0f;
  }

  bool any_ = false;
  bool is_bad_[kChunk] = {};
};

}  // namespace quire

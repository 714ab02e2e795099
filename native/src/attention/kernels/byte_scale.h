// How numbers become integers that share a scale: those of a token in an int8 cache, and q and the
// weights P where whole bytes are multiplied.
#pragma once

#include "simd/vector.h"

namespace quire {

// What numbers are multiplied by to become integers up to `limit`, and what one of these is worth.
// A NaN or an infinity among the numbers makes the latter NaN, and so all that they give.
struct ByteScale {
  float inverse = 0.0f;
  float unit = 0.0f;

  ByteScale() = default;
  ByteScale(const gemm::Extent& extent, float limit) {
    // Smaller numbers count as zeros: the limit divided by the largest must be a number.
    constexpr float kSmallest = 1e-30f;
    const float top = extent.top();
    const float bad = extent.bad();
    inverse = top >= kSmallest && bad == 0.0f ? limit / top : 0.0f;
    unit = top / limit + bad;
  }

  QUIRE_INLINE I32x16 integers(F32x16 v) const { return gemm::nearest(v * inverse); }
};

}  // namespace quire

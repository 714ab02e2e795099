// How numbers become integers that share a scale: those of a token in an int8 cache, and q and the
// weights P where whole bytes are multiplied.
#pragma once

#include "simd/vector.h"

namespace quire {

// Smaller numbers count as zeros: the limit divided by the largest must be a number.
constexpr float kSmallestTop = 1e-30f;

// What numbers are multiplied by to become integers up to `limit`, and what one of these is worth.
// A NaN or an infinity among the numbers makes the latter NaN, and so all that they give.
struct ByteScale {
  float inverse = 0.0f;
  float unit = 0.0f;

  ByteScale() = default;
  ByteScale(const gemm::Extent& extent, float limit) {
    const float top = extent.top();
    const float bad = extent.bad();
    inverse = top >= kSmallestTop && bad == 0.0f ? limit / top : 0.0f;
    unit = top / limit + bad;
  }

  QUIRE_INLINE I32x16 integers(F32x16 v) const { return gemm::nearest(v * inverse); }
};

// The same of four extents at once.
struct ByteScales {
  gemm::F32x4 inverse;
  gemm::F32x4 unit;

  QUIRE_INLINE ByteScales(const gemm::Extent (&extents)[4], float limit) {
    const gemm::F32x4 top = gemm::Extent::tops(extents);
    const gemm::F32x4 bad = top * 0.0f;
    inverse = (top >= kSmallestTop) & (bad == 0.0f) ? limit / top : gemm::F32x4{};
    unit = top / limit + bad;
  }
};

}  // namespace quire

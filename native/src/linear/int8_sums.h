// From integer sums to float32: the planes put together, the scales of row and column applied.
#pragma once

#include "linear/family.h"
#include "linear/simd.h"

namespace quire::gemm {

// In place: sums of [strip][tile][rows * planes][32] integers become [strip][row][32] floats.
// `x_scales(tile)` gives the scales of a tile's rows.
template <int kPlanes, bool kUnsignedX, class Scales>
void scale_sums(const Block& block, Scales x_scales) {
  float* out = block.sums;
  for (int64_t strip = 0; strip < block.strips; ++strip) {
    for (int64_t tile = 0; tile < block.tiles; ++tile) {
      const float* row_scales = x_scales(tile);
      const float* sums = block.sums_of(strip, tile);
      for (int64_t row = 0; row < block.rows / kPlanes; ++row, out += kStripColumns) {
        for (int64_t half = 0; half < kStripColumns; half += kHalfStrip) {
          const int64_t column = strip * kStripColumns + half;
          F32x16 value = {};
          for (int plane = 0; plane < kPlanes; ++plane) {
            I32x16 sum = load<I32x16>(sums + (row * kPlanes + plane) * kStripColumns + half);
            if constexpr (kUnsignedX) sum -= load<I32x16>(block.offsets + column);
            value = value * 256.0f + convert<F32x16>(sum);
          }
          const F32x16 scales = load<F32x16>(block.scales + column);
          store(out + half, value * row_scales[row] * scales);
        }
      }
    }
  }
}

}  // namespace quire::gemm

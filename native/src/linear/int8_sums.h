// From integer sums to float32: the planes put together, the scales of row and column applied.
#pragma once

#include "linear/family.h"
#include "linear/simd.h"

namespace quire::gemm {

// `count` rows of sums of one strip, [row][planes][32] integers, become [row][32] floats at `out`,
// which may be where the sums are.
template <int kPlanes, bool kUnsignedX>
void scale_rows(const Block& block, int64_t strip, const float* row_scales, int64_t count,
                const float* sums, float* out) {
  for (int64_t row = 0; row < count; ++row, sums += kPlanes * kStripColumns, out += kStripColumns) {
    for (int64_t half = 0; half < kStripColumns; half += kHalfStrip) {
      const int64_t column = strip * kStripColumns + half;
      F32x16 value = {};
      for (int plane = 0; plane < kPlanes; ++plane) {
        I32x16 sum = load<I32x16>(sums + plane * kStripColumns + half);
        if constexpr (kUnsignedX) sum -= load<I32x16>(block.offsets + column);
        const F32x16 part = convert<F32x16>(sum);
        value = plane == 0 ? part : value * 256.0f + part;
      }
      const F32x16 scales = load<F32x16>(block.scales + column);
      store(out + half, value * row_scales[row] * scales);
    }
  }
}

// The same in place for all strips and tiles of a block: [strip][tile][rows * planes][32] become
// [strip][row][32]. `x_scales(tile)` gives the scales of a tile's rows.
template <int kPlanes, bool kUnsignedX, class Scales>
void scale_sums(const Block& block, Scales x_scales) {
  const int64_t rows = block.rows / kPlanes;
  float* out = block.sums;
  for (int64_t strip = 0; strip < block.strips; ++strip) {
    for (int64_t tile = 0; tile < block.tiles; ++tile, out += rows * kStripColumns) {
      scale_rows<kPlanes, kUnsignedX>(block, strip, x_scales(tile), rows,
                                      block.sums_of(strip, tile), out);
    }
  }
}

}  // namespace quire::gemm

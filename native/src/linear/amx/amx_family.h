// bfloat16 and int8 products on AMX tiles, the latter with weights of 8 or 4 bits.
//
// x is packed in tiles of up to 16 rows by 64 bytes of K; a step multiplies two of them with the
// two 16-column halves of a strip, so that four accumulators share four loads. All tiles of a
// product have the same height (family.h, Tiling), hence one tile configuration, and few rows cost
// few cycles. The sums of an element are formed in the same order whatever the height.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "linear/family.h"
#include "simd/simd.h"

namespace quire::gemm {

struct AmxBf16 {
  static constexpr bool kInt8 = false;
  static constexpr bool kInt4 = false;
  static constexpr int kPlanes = 1;
};

// x as one or two planes of signed bytes: the planes of a row are neighbouring rows of its tile.
template <int kPlanes_>
struct AmxInt8 {
  static constexpr bool kInt8 = true;
  static constexpr bool kInt4 = false;
  static constexpr int kPlanes = kPlanes_;
};

// The same with weights of 4 bits, expanded on their way to the tiles.
template <int kPlanes_>
struct AmxInt4 : AmxInt8<kPlanes_> {
  static constexpr bool kInt4 = true;
};

template <class Product>
struct AmxFamily {
  static constexpr int64_t kDepth = Product::kInt8 ? 64 : 32;  // 64 bytes
  static constexpr int64_t kPlanes = Product::kPlanes;
  static constexpr int64_t kMaxTileRows = 16 / kPlanes;

  static bool available();
  // The tile, and after it the scales of its rows where x is quantised, and their outliers where
  // it has one plane.
  static int64_t matrix_bytes(int64_t rows, int64_t k) { return rows * kPlanes * k * 64 / kDepth; }
  static int64_t outliers_at(int64_t rows, int64_t k) {
    return matrix_bytes(rows, k) + (Product::kInt8 ? rows * 4 : 0);
  }
  static int64_t tile_bytes(int64_t rows, int64_t k) {
    constexpr int64_t kOutlierBytes = kPlanes == 1 ? sizeof(RowOutliers) : 0;
    return outliers_at(rows, k) + (Product::kInt8 ? rows * kOutlierBytes : 0);
  }
  static int64_t strips_at_once(int64_t, int64_t tiles) { return tiles == 1 ? 2 : 1; }

  static void pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                        int64_t k_padded, uint8_t* out);
  static void begin(int64_t tile_rows, Format format);
  static void end();
  static void multiply(const Block& block);

  // Makes outputs of the sums of a tile with a strip.
  static void finish(const Block& block, int64_t strip, int64_t tile) {
    Sums sums{block.sums_of(strip, tile)};
    if constexpr (Product::kInt8) {
      const uint8_t* x = block.x + tile * block.tile_bytes;
      const int64_t scales_at = matrix_bytes(block.rows / kPlanes, block.k);
      sums.row_scales = reinterpret_cast<const float*>(x + scales_at);
      if constexpr (kPlanes == 1) {
        const int64_t at = outliers_at(block.rows, block.k);
        sums.outliers = reinterpret_cast<const RowOutliers*>(x + at);
        sums.int4 = Product::kInt4;
      }
    }
    block.finish(strip, tile, sums);
  }
};

}  // namespace quire::gemm

// bfloat16 products on AMX tiles.
//
// x is packed in tiles of up to 16 rows by 32 of K; a step multiplies two of them with the two
// 16-column halves of a strip, so that four accumulators share four loads. All tiles of a product
// have the same height (family.h, Tiling), hence one tile configuration, and few rows cost few
// cycles. The sums of an element are formed in the same order whatever the height.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "linear/family.h"
#include "linear/simd.h"

namespace quire::gemm {

struct AmxFamily {
  static constexpr int64_t kDepth = 32;
  static constexpr int64_t kMaxTileRows = 16;

  static bool available();
  static int64_t tile_bytes(int64_t rows, int64_t k) { return rows * k * 2; }
  static int64_t strips_at_once(int64_t, int64_t tiles) { return tiles == 1 ? 2 : 1; }

  static void pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                        int64_t k_padded, uint8_t* out);
  static void begin(int64_t tile_rows);
  static void end();
  static void multiply(const Block& block);
};

}  // namespace quire::gemm

// The AMX family: packing x, and which inner loop takes a block; see amx_family.h.
#if defined(__AMX_BF16__)

#include "linear/amx/amx_family.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "linear/amx/amx_blocked.h"
#include "linear/amx/amx_steps.h"
#include "linear/amx/amx_stream.h"
#include "linear/amx/pack_line.h"
#include "linear/row_outliers.h"
#include "linear/x_segment.h"

namespace quire::gemm {

template <class Product>
bool AmxFamily<Product>::available() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, absent from older headers
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

template <class Product>
void AmxFamily<Product>::pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                                   int64_t k_padded, uint8_t* out) {
  RowScale scales[kMaxTileRows] = {};
  if constexpr (Product::kInt8) {
    auto* kept = reinterpret_cast<float*>(out + matrix_bytes(tile_rows, k_padded));
    for (int64_t r = 0; r < rows; ++r) {
      if constexpr (kPlanes == 1) {
        const OutlierRow found = outlier_row(x, row0 + r);
        scales[r] = found.by;
        std::memcpy(out + outliers_at(tile_rows, k_padded) + r * sizeof found.outliers,
                    &found.outliers, sizeof found.outliers);
      } else {
        scales[r] = row_scale(x, row0 + r, limit_of(kPlanes));
      }
      kept[r] = scales[r].scale;
    }
  }
  for (int64_t k = 0; k < k_padded; k += kDepth) {
    for (int64_t r = 0; r < tile_rows; ++r, out += 64 * kPlanes) {
      if (r >= rows) {
        std::memset(out, 0, 64 * kPlanes);
      } else if constexpr (Product::kInt8) {
        quantise_segment<kPlanes>(x, row0 + r, k, std::min(kSegment, x.k - k), scales[r].inverse,
                                  reinterpret_cast<int8_t*>(out), kSegment);
      } else {
        pack_line(x, x.row(row0 + r), k, out);
      }
    }
  }
}

template <class Product>
void AmxFamily<Product>::begin(int64_t tile_rows, Format) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 6 ? tile_rows * kPlanes : 16);
  }
  // Not the intrinsic: gcc 12 assumes that it reads eight bytes only.
  asm volatile("ldtilecfg %0" : : "m"(config));
}

template <class Product>
void AmxFamily<Product>::end() {
  _tile_release();
}

template <class Product>
void AmxFamily<Product>::multiply(const Block& block) {
  if (block.tiles > 2) return many_tiles<Product>(block);
  if (block.tiles == 2) {
    few_tiles<Product, 2, 1>(block);
  } else if (block.strips == 2) {
    few_tiles<Product, 1, 2>(block);
  } else {
    few_tiles<Product, 1, 1>(block);
  }
  for (int64_t strip = 0; strip < block.strips; ++strip) {
    for (int64_t tile = 0; tile < block.tiles; ++tile) finish(block, strip, tile);
  }
}

template struct AmxFamily<AmxBf16>;
template struct AmxFamily<AmxInt8<1>>;
template struct AmxFamily<AmxInt8<2>>;
template struct AmxFamily<AmxInt4<1>>;
template struct AmxFamily<AmxInt4<2>>;

}  // namespace quire::gemm

#endif

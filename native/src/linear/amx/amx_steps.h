// One step of K on AMX tiles: the loads, the products, the accumulators' way to memory, and what is
// fetched meanwhile.
//
// Tile registers: accumulators 0-3, x 4-5, weights 6-7. For amx_stream.h and amx_blocked.h.
#pragma once

#include <immintrin.h>

#include "linear/family.h"
#include "simd/fetch.h"
#include "simd/simd.h"

namespace quire::gemm {

constexpr int64_t kStepWeightBytes = 2048;  // one step of K, 32 columns
constexpr int64_t kStepLines = kStepWeightBytes / 64;
constexpr int64_t kWeightStride = 128;  // between the pairs of K of a strip
constexpr int64_t kSumsStride = kStripColumns * 4;

// What ldtilecfg reads.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Where the next step reads.
struct Cursor {
  const uint8_t* x;
  int64_t x_step;  // bytes of one tile's step
  int64_t x_tile;  // to the next tile of rows
  const uint8_t* weight;
  int64_t strip;         // to the next strip
  const uint8_t* ahead;  // what to prefetch meanwhile
};

enum class CacheLevel { kFirstLevel, kSecondLevel };

template <int kLines, CacheLevel level = CacheLevel::kFirstLevel>
QUIRE_INLINE void prefetch_lines(const uint8_t* p) {
  constexpr auto kHint = level == CacheLevel::kFirstLevel ? _MM_HINT_T0 : _MM_HINT_T1;
#pragma GCC unroll 32
  for (int i = 0; i < kLines; ++i) _mm_prefetch(reinterpret_cast<const char*>(p + i * 64), kHint);
}

// Not the intrinsics, which want literal register numbers and differ by type.
template <bool kInt8, int kSum, int kX, int kWeight>
QUIRE_INLINE void multiply_tiles() {
  if constexpr (kInt8) {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kX), "i"(kWeight));
  } else {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kX), "i"(kWeight));
  }
}

template <bool kInt8, bool kStreamX>
QUIRE_INLINE void step_two_tiles(const Cursor& at) {
  if constexpr (kStreamX) {
    _tile_stream_loadd(4, at.x, 64);
  } else {
    _tile_loadd(4, at.x, 64);
  }
  _tile_loadd(6, at.weight, kWeightStride);
  _tile_loadd(7, at.weight + 64, kWeightStride);
  multiply_tiles<kInt8, 0, 4, 6>();
  if constexpr (kStreamX) {
    _tile_stream_loadd(5, at.x + at.x_tile, 64);
  } else {
    _tile_loadd(5, at.x + at.x_tile, 64);
  }
  multiply_tiles<kInt8, 1, 4, 7>();
  multiply_tiles<kInt8, 2, 5, 6>();
  multiply_tiles<kInt8, 3, 5, 7>();
}

template <bool kInt8>
QUIRE_INLINE void step_one_tile(const Cursor& at) {
  _tile_loadd(4, at.x, 64);
  _tile_loadd(6, at.weight, kWeightStride);
  multiply_tiles<kInt8, 0, 4, 6>();
  _tile_loadd(7, at.weight + 64, kWeightStride);
  multiply_tiles<kInt8, 1, 4, 7>();
}

template <bool kInt8>
QUIRE_INLINE void step_two_strips(const Cursor& at) {
  step_one_tile<kInt8>(at);
  _tile_loadd(6, at.weight + at.strip, kWeightStride);
  multiply_tiles<kInt8, 2, 4, 6>();
  _tile_loadd(7, at.weight + at.strip + 64, kWeightStride);
  multiply_tiles<kInt8, 3, 4, 7>();
}

// Tiles of rows and strips that one pass of the inner loop holds: 1x1, 2x1 or 1x2.
template <bool kInt8, int kTiles, int kStrips, bool kStreamX = false>
QUIRE_INLINE void step(const Cursor& at) {
  static_assert(kTiles * kStrips <= 2);
  if constexpr (kTiles == 2) {
    step_two_tiles<kInt8, kStreamX>(at);
  } else if constexpr (kStrips == 2) {
    step_two_strips<kInt8>(at);
  } else {
    step_one_tile<kInt8>(at);
  }
}

template <int kAccumulatorPairs>
QUIRE_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kAccumulatorPairs == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <int kAccumulatorPairs>
QUIRE_INLINE void load_sums(const float* first, const float* second) {
  _tile_loadd(0, first, kSumsStride);
  _tile_loadd(1, first + kHalfStrip, kSumsStride);
  if constexpr (kAccumulatorPairs == 2) {
    _tile_loadd(2, second, kSumsStride);
    _tile_loadd(3, second + kHalfStrip, kSumsStride);
  }
}

template <int kAccumulatorPairs>
QUIRE_INLINE void store_sums(float* first, float* second) {
  _tile_stored(0, first, kSumsStride);
  _tile_stored(1, first + kHalfStrip, kSumsStride);
  if constexpr (kAccumulatorPairs == 2) {
    _tile_stored(2, second, kSumsStride);
    _tile_stored(3, second + kHalfStrip, kSumsStride);
  }
}

// Rows of x from `next` to `end` whose destinations are prefetched, `each` at a time.
struct RowsToFetch {
  int64_t next;
  int64_t end;
  int64_t each;

  // Those of `tiles` tiles from `tile` on, shared out over `steps`.
  static QUIRE_INLINE RowsToFetch of(const Block& block, int64_t tile, int64_t tiles,
                                     int64_t steps) {
    const int64_t rows = block.rows / block.planes;
    const int64_t end = std::min(block.rows_of_x(), (tile + tiles) * rows);
    return {tile * rows, end, ceil_div(tiles * rows, steps)};
  }

  QUIRE_INLINE void fetch_some(const Block& block) {
    const int64_t to = std::min(next + each, end);
    fetch_destinations(block, next, to);
    next = to;
  }
};

}  // namespace quire::gemm

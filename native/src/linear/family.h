// The interface between a kernel family and the driver (linear.cpp).
//
// A family is a struct of static members, compiled for an ISA tier. The driver is compiled once and
// has them as a `Family`, chosen by format (families.h):
//
//   kDepth              K is padded with zeros to a multiple of this
//   kPlanes             rows that its micro-kernel sees for each row of x
//   kMaxTileRows        rows of x that one micro-kernel call takes at most
//   tile_bytes(rows, k) bytes of one packed tile of x, k padded
//   strips_at_once(rows, tiles)   strips the family likes to stream together
//   pack_tile(...)      writes rows of x in the order of its micro-kernel
//   begin(rows, format), end()    around all multiply() calls of one worker in one product
//   multiply(block)     the products of a block of rows with a few strips of the weight; every row
//                       of x goes through block.finish() once
//
// Where kPlanes > 1, the rows of a Block are those of the micro-kernel.
//
// A strip is 32 output columns, stored whole for all K: [k_padded / w][32][w] elements, w = 4 for
// int8, 2 for bf16 and 1 for float32; float16 lies as float16.h says. 4-bit weights lie as
// int4_weights.h says; the family expands them to int8, or to what int4_pairs.h says, a block of K
// at a time. The strip order is the same for every tier and every m.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "linear/linear.h"

namespace quire::gemm {

constexpr int64_t kStripColumns = 32;
constexpr int64_t kHalfStrip = 16;
constexpr int kMaxStripsAtOnce = 4;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Rows of x are cut into tiles of equal height; the last may be lower.
struct Tiling {
  int64_t m;
  int64_t tiles;
  int64_t rows;

  Tiling(int64_t m_, int64_t max_rows)
      : m(m_), tiles(ceil_div(m_, max_rows)), rows(ceil_div(m_, tiles)) {}
  int64_t rows_of(int64_t tile) const { return tile + 1 < tiles ? rows : m - rows * (tiles - 1); }
};

// Rows of the step's activations, in the caller's memory.
struct Rows {
  const void* data;
  DType dtype;
  int64_t stride;  // elements
  int64_t k;
  const int32_t* indices;  // which row of the memory each is; null: row after row
  const int32_t* order;    // [k]: which number of the memory each of a row is; null: one by one

  const void* row(int64_t r) const {
    const int64_t size = dtype == DType::kF32 ? 4 : 2;
    const int64_t place = indices == nullptr ? r : indices[r];
    return static_cast<const uint8_t*>(data) + place * stride * size;
  }
};

// Memory that will be written (or read) when the sums are finished, row by row; families with many
// rows prefetch it while they multiply: the hardware prefetcher does not follow rows so far apart.
struct Destination {
  const uint8_t* first;  // of the block's first row and strip
  int64_t row_bytes;     // to the next row
  int64_t bytes;         // of a row; 0: nothing
};

constexpr int kOutliers = 4;

// The columns of a row of x whose integers do not fit in its bytes, and what the bytes leave of
// them: 16 bits with a sign, in the lower half of a word (row_outliers.h).
struct RowOutliers {
  int32_t count;
  int32_t columns[kOutliers];
  int32_t rests[kOutliers];
};

// What a micro-kernel leaves of some rows of x and one strip: [row][planes][32]. Finishing them may
// change them.
struct Sums {
  float* data;
  // Of each row, where x is quantised: the sums are 32-bit integers then. Null: they are floats.
  const float* row_scales = nullptr;
  int upper_bits = 0;    // the first of two sums counts 256 times 2 to this
  bool shifted = false;  // x had 128 added
  bool grouped = false;  // [row][32] floats already, in which only x's scale is missing
  // Of each row, in formats with 8-bit activations. They are multiplied with the block's weights,
  // which may have 4 bits.
  const RowOutliers* outliers = nullptr;
  bool int4 = false;
};

// The work of one multiply(): x tiles * strips. The sums have room in `sums`, as
// [strip][tile][row][32].
struct Block {
  const LinearArgs* args;
  int64_t first_row;    // of x
  int64_t first_strip;  // of the weight
  const uint8_t* x;     // first packed tile; the next tile_bytes further
  int64_t tile_bytes;
  int64_t tiles;
  int64_t rows;       // of every tile but the last
  int64_t last_rows;  // of the last
  int64_t planes;
  int64_t k;              // padded
  const uint8_t* weight;  // first strip; the next strip_bytes further
  int64_t strip_bytes;
  int64_t strips;
  const float* scales;     // of the strips' columns, for formats that have them
  const int32_t* offsets;  // 128 times the sum of each column's weights, likewise
  const uint8_t* next;     // what this worker will stream after this block, to be prefetched
  float* sums;
  bool x_is_cached;  // this worker has just read the same rows of x
  Destination out;
  Destination residual;

  float* sums_of(int64_t strip, int64_t tile) const {
    return sums + (strip * tiles + tile) * rows * kStripColumns;
  }
  int64_t rows_of(int64_t tile) const { return tile + 1 < tiles ? rows : last_rows; }
  int64_t rows_of_x() const { return ((tiles - 1) * rows + last_rows) / planes; }

  // Makes outputs of the sums of a tile with a strip.
  void finish(int64_t strip, int64_t tile, const Sums& of_tile) const;
};

// A family as the driver has it.
struct Family {
  int64_t depth;
  int64_t planes;
  int64_t max_tile_rows;
  int64_t many_tiles_rows;  // of each of several tiles; a family may take more in a single one
  ChangePlace change_place;
  int64_t (*tile_bytes)(int64_t rows, int64_t k);
  int64_t (*strips_at_once)(int64_t rows, int64_t tiles);
  void (*pack_tile)(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows, int64_t k_padded,
                    uint8_t* out);
  void (*begin)(int64_t tile_rows, Format format);
  void (*end)();
  void (*multiply)(const Block& block);

  Tiling tiling(int64_t m) const {
    return {m, m <= max_tile_rows ? max_tile_rows : many_tiles_rows};
  }
};

template <class Members, class = void>
constexpr int64_t kManyTilesRowsOf = Members::kMaxTileRows;
template <class Members>
constexpr int64_t kManyTilesRowsOf<Members, std::void_t<decltype(Members::kManyTilesRows)>> =
    Members::kManyTilesRows;

template <class Members, ChangePlace kPlace = ChangePlace::kVectors>
constexpr Family kFamily = {
    Members::kDepth, Members::kPlanes,    Members::kMaxTileRows,   kManyTilesRowsOf<Members>,
    kPlace,          Members::tile_bytes, Members::strips_at_once, Members::pack_tile,
    Members::begin,  Members::end,        Members::multiply};

}  // namespace quire::gemm

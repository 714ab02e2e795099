// Matrix products with packed weights: out = epilogue(x * W^T + bias).
//
// One packed layout and one arithmetic per format for every number of rows: the bits of an output
// row depend on that row of x and on W alone, never on m, on the thread count or on the neighbours.
// K is therefore always summed from 0 upwards, in the same steps, by the one thread that owns an
// output element.
//
// Called by the step executor; knows nothing of models, requests or caches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire.h"
#include "threads/pool.h"

namespace quire {

// The enums of quire.h as types, with the same numbers.
enum class DType : int32_t {
  kF32 = QUIRE_F32,
  kBF16 = QUIRE_BF16,
  kF16 = QUIRE_F16,
  kGrouped = QUIRE_GROUPED,
  kGguf = QUIRE_GGUF  // and all above: packing/gguf_blocks.h
};

enum class Format : int32_t {
  kF32 = QUIRE_FORMAT_F32,
  kBF16 = QUIRE_FORMAT_BF16,
  kInt8A8 = QUIRE_FORMAT_INT8_A8,
  kInt8A16 = QUIRE_FORMAT_INT8_A16,
  kInt4A8 = QUIRE_FORMAT_INT4_A8,
  kInt4A16 = QUIRE_FORMAT_INT4_A16,
  kGroupedA8 = QUIRE_FORMAT_GROUPED_A8,
  kGroupedA16 = QUIRE_FORMAT_GROUPED_A16,
  kGroupedA8Blocks = QUIRE_FORMAT_GROUPED_A8_BLOCKS,
  kGroupedBf16 = QUIRE_FORMAT_GROUPED_BF16,
  kGroupedF32 = QUIRE_FORMAT_GROUPED_F32,
  kHeldBF16 = QUIRE_FORMAT_HELD_BF16,
  kHeldF16 = QUIRE_FORMAT_HELD_F16
};

// The format without the bits that say how a grouped one is made up.
inline Format kind_of(Format format) {
  return static_cast<Format>(static_cast<int32_t>(format) & 0xff);
}

inline bool is_grouped(Format format) {
  return kind_of(format) >= Format::kGroupedA8 && kind_of(format) <= Format::kGroupedF32;
}

// Of the grouped ones, those whose codes stand for floats.
inline bool is_grouped_float(Format format) {
  return kind_of(format) == Format::kGroupedBf16 || kind_of(format) == Format::kGroupedF32;
}

// Whether numbers of 16 bits are kept for products of float32.
inline bool is_held(Format format) {
  return format == Format::kHeldBF16 || format == Format::kHeldF16;
}

inline bool is_integer(Format format) {
  return format != Format::kF32 && format != Format::kBF16 && !is_held(format) &&
         !is_grouped_float(format);
}

// Longest row of an integer format: sums of products of two bytes, at most 128 * 127 each, and 128
// times the sum of a row, then fit in 32 bits.
constexpr int64_t kMaxIntegerDepth = (int64_t{1} << 17) - 1;

using Activation = quire_activation;

// A weight [n, k] in the layout of its format. The caller owns `data`, which has
// `packed_bytes(...)` bytes and is 64-byte aligned.
struct PackedMatrix {
  Format format;
  int64_t n;
  int64_t k;
  bool glu;  // rows 0..n/2-1 are the gate, n/2..n-1 the up projection, interleaved by half strips
  void* data;
};

// Asks the operating system for the register state that this tier's instructions need (AMX tiles).
// False if it refuses: then nothing else of this tier may be called. Once per process, early.
bool linear_available();

// Bytes that `data` needs, padding of n and k included.
size_t packed_bytes(Format format, int64_t n, int64_t k, bool glu);

// Packs rows row0 .. row0+rows-1 of the matrix from `src`. Row r of the source is at
// src + r * k elements, or, when `transposed`, element (r, c) is at src + c * src_rows + r.
// Disjoint row ranges may be packed by several threads at once, provided that they start at
// multiples of `pack_row_multiple()`. Padding rows are zeroed by the call that packs the last row.
// kGrouped goes into a grouped matrix alone; one takes blocks of its own format besides.
// Returns whether all numbers are finite as they are stored.
bool pack_rows(const PackedMatrix& matrix, const void* src, DType src_dtype, bool transposed,
               int64_t src_rows, int64_t src_row0, int64_t row0, int64_t rows);
int64_t pack_row_multiple();

// Low-rank changes on tiles: numbers of h that are multiplied together, and lines of A likewise.
constexpr int64_t kTileNumbers = 32;
constexpr int64_t kTileLinesOfA = 16;
// Rows of x that are multiplied with A together, in two tiles.
constexpr int64_t kShrunkRows = 32;

// A low-rank change of a product: its row y becomes gains * (y + B h + bias), h = A x.
struct LowRank {
  // Of one half strip of the product's columns: which numbers of h reach it, and its part of B.
  struct Half {
    int32_t first;
    int32_t count;
    int64_t b;  // element of `b` where its part begins; see low_rank.h
  };
  const Half* halves;  // two for each strip
  const void* b;
  DType dtype;         // of `b`
  const float* bias;   // 16 for each half strip, or null
  const float* gains;  // likewise
  int64_t width;       // numbers of h
  bool on_tiles;       // h and B are multiplied as amx_low_rank.h says
};

// The change of a row of a product.
struct RowChange {
  const LowRank* by = nullptr;   // null: the row is not changed
  const void* hidden = nullptr;  // h of the row: float32, or its line of `TileChange::hidden`
  int32_t previous = -1;         // the nearest row before this one with the same change; -1: none
  int32_t next = -1;             // the nearest one after it, likewise
};

// The change of some rows of a tile of a product.
struct TileChange {
  const LowRank* by;
  // h of the tile's rows, [32 of h][16 rows][32]: zeros for rows without this change.
  const uint16_t* hidden;
};

// Changes of the rows of a product.
struct RowChanges {
  const RowChange* rows;        // [m]
  const LowRank* const* known;  // all that rows have, each once
  int64_t num_known;
  // Those on tiles, which AMX alone has:
  const TileChange* of_tiles;  // one tile's after the other's; null: none
  const int32_t* tile_starts;  // [tiles + 1]: where those of each tile begin
  int64_t tile_rows;           // of x, in each tile
  bool are_in_sums;            // B h of them is in the sums when the epilogue gets these
  bool has_more;               // the epilogue has to do something besides
};

struct LinearArgs {
  const PackedMatrix* weight;
  const void* x;          // [m, k], row stride x_stride elements
  DType x_dtype;          // kF32 or kBF16
  const int32_t* x_rows;  // [m]: which row of x each is; null: row after row
  int64_t m;
  int64_t x_stride;
  const float* bias;      // [n] or null; for a glu matrix gate's then up's
  const float* residual;  // [m, n] float32 added last, or null; may be `out` itself
  int64_t residual_stride;
  Activation activation;  // on the result, or on the gate of a glu matrix, whose out is [m, n/2]
  float scale;            // multiplies x * W^T before the bias; 1 normally
  void* out;
  DType out_dtype;  // kF32 or kBF16
  int64_t out_stride;
  void* scratch;              // linear_scratch_bytes(...) of them, 64-byte aligned
  const RowChanges* changes;  // made before scale and bias; null: none
};

size_t linear_scratch_bytes(Format format, int64_t k, int64_t max_m);

// How low-rank changes in bfloat16 of products in a format are multiplied.
enum class ChangePlace {
  kVectors,      // in the epilogue
  kTiles,        // likewise, on tiles
  kTilesOfSums,  // on the tiles of the product's sums, before its first step of K
};
ChangePlace change_place(Format format);

// Rows of x in each tile of a product with `m` rows; the last may have fewer.
int64_t rows_of_tiles(Format format, int64_t m);

// Computes the product on the threads of the pool.
void linear(const LinearArgs& args, Pool& pool);

// Computes several products at once, as `linear` does each of them: work of one follows that of
// another without a pause. Their weights have one format, n and k; each needs scratch of its own.
void linear_together(const LinearArgs* args, int64_t count, Pool& pool);

}  // namespace quire

// Products with ordinary vector registers: float32, bfloat16 widened to float32, bfloat16 dot.
//
// A micro-kernel keeps rows x columns of sums in registers, goes through K from 0 upwards, loads a
// line of weights once and multiplies it with one broadcast element (or pair) of each row of x. x
// is packed so that these broadcasts are contiguous: [step of K][row].
//
// Whatever the shape of the micro-kernel, a sum is formed by the same chain of fused
// multiply-additions over K, so the shapes may be chosen freely for speed.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "linear/family.h"
#include "linear/int4_direct.h"
#include "linear/int4_weights.h"
#include "linear/int8_products.h"
#include "linear/row_outliers.h"
#include "linear/vector_products.h"
#include "simd/fetch.h"
#include "simd/simd.h"
#include "simd/transpose.h"

namespace quire::gemm {

// How many rows, columns and strips a micro-kernel holds, by the number of vector registers.
#if defined(__AVX512F__)
constexpr int kMaxVectorRows = 12;
constexpr int kTallColumns = 32;
constexpr int64_t strips_for_rows(int64_t rows) { return rows <= 3 ? 4 : rows <= 6 ? 2 : 1; }
#elif defined(__AVX2__)
constexpr int kMaxVectorRows = 6;
constexpr int kTallColumns = 16;
constexpr int64_t strips_for_rows(int64_t rows) { return rows == 1 ? 2 : 1; }
#elif defined(__ARM_NEON)
constexpr int kMaxVectorRows = 4;
constexpr int kTallColumns = 16;
constexpr int64_t strips_for_rows(int64_t) { return 1; }
#else
constexpr int kMaxVectorRows = 4;
constexpr int kTallColumns = 8;
constexpr int64_t strips_for_rows(int64_t) { return 1; }
#endif
constexpr int kStepBytes = 128;  // one step of K, 32 columns, every format
constexpr int kAheadBytes = 2048;
constexpr int64_t kExpandedBytes = 16384;  // of weights, in the first-level cache

// Rows that still fit in registers with all 32 columns of a strip.
constexpr int kWideRows = kTallColumns == 32 ? kMaxVectorRows : kTallColumns == 16 ? 2 : 1;

struct MicroArgs {
  const uint32_t* x;      // [steps][Product::kUnits][rows]
  const uint8_t* weight;  // first line of the first column
  int64_t steps;
  int64_t strip_bytes;
  const uint8_t* ahead;  // prefetched, ahead_step bytes a step
  int64_t ahead_step;
  int64_t ahead_strip;
  float* sums;         // [row][32]
  int64_t sums_strip;  // floats from one strip's sums to the next's
  bool resume;         // K was begun before: add to the sums
};

// Adds sums of whole numbers to those in memory, which have two lines: high * 65536 + low. Or
// begins these. The sums become zero.
template <class Sum, int kRows, int kVectors, class Place>
QUIRE_INLINE void add_split(Sum (&sums)[kRows][kVectors], bool resume, const Place& place) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      float* high = place(r, v);
      float* low = high + kStripColumns;
      store(high, (resume ? load<Sum>(high) : Sum{}) + (sums[r][v] >> 16));
      store(low, (resume ? load<Sum>(low) : Sum{}) + (sums[r][v] & 0xffff));
      sums[r][v] = Sum{};
    }
  }
}

#if defined(QUIRE_TILES_OF_BYTES)
// Two rows at a time, as the instruction takes them. Sums of whole numbers have no order, so that
// one row by itself has the same ones. Where the number of rows is odd, the last one is joined by
// whatever follows it in a packed tile, and that one's sums are dropped.
template <class Product, int kRows, int kColumns, int kStrips>
void tile_kernel(const MicroArgs& args) {
  using Lanes = std::make_integer_sequence<int, kVectorLanes>;
  constexpr int kVectors = kColumns / kVectorLanes;
  constexpr int kAll = kStrips * kVectors;
  constexpr int kPairs = (kRows + 1) / 2;
  const auto place = [&](int r, int v) {
    return args.sums + (v / kVectors) * args.sums_strip + r * kStripColumns +
           (v % kVectors) * kVectorLanes;
  };
  IntVector sums[kPairs][kAll][2] = {};  // of the first two columns of four, and of the others
  const uint32_t* x = args.x;
  const uint8_t* weight = args.weight;
  const uint8_t* ahead = args.ahead;
  for (int64_t step = 0; step < args.steps; step += Product::kStepsTogether) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < Product::kStepsTogether * kStepBytes; i += 64) {
      __builtin_prefetch(ahead + i);
    }
    IntVector rows[kPairs];
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) rows[p] = tile_of_rows(x + 2 * p, x + kRows + 2 * p);
#pragma GCC unroll 8
    for (int v = 0; v < kAll; ++v) {
      const uint8_t* line =
          weight + (v / kVectors) * args.strip_bytes + (v % kVectors) * sizeof(IntVector);
      const auto first = load<IntVector>(line), second = load<IntVector>(line + kStepBytes);
      const IntVector columns[] = {zip<0>(first, second, Lanes{}), zip<1>(first, second, Lanes{})};
#pragma GCC unroll 2
      for (int p = 0; p < kPairs; ++p) {
        sums[p][v][0] = dot_tiles(sums[p][v][0], rows[p], columns[0]);
        sums[p][v][1] = dot_tiles(sums[p][v][1], rows[p], columns[1]);
      }
    }
    x += Product::kStepsTogether * kRows;
    weight += Product::kStepsTogether * kStepBytes;
    ahead += Product::kStepsTogether * args.ahead_step;
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kAll; ++v) {
      const auto& both = sums[r / 2][v];
      const auto sum = r % 2 == 0 ? __builtin_shufflevector(both[0], both[1], 0, 1, 4, 5)
                                  : __builtin_shufflevector(both[0], both[1], 2, 3, 6, 7);
      store(place(r, v), args.resume ? load<IntVector>(place(r, v)) + sum : sum);
    }
  }
}
#endif

template <class Product, int kRows, int kColumns, int kStrips>
void micro_kernel(const MicroArgs& args) {
#if defined(QUIRE_TILES_OF_BYTES)
  if constexpr (Product::kStepsTogether == 2 && kRows > 1) {
    return tile_kernel<Product, kRows, kColumns, kStrips>(args);
  }
#endif
  constexpr int kVectors = kColumns / kVectorLanes;
  constexpr bool kSplit = Product::kSums > Product::kPlanes;
  using Sum = typename Product::Sum;
  const auto place = [&](int r, int v) {
    return args.sums + (v / kVectors) * args.sums_strip + r * (kSplit ? 2 : 1) * kStripColumns +
           (v % kVectors) * kVectorLanes;
  };
  Sum sums[kRows][kStrips * kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kStrips * kVectors; ++v) {
      sums[r][v] = args.resume && !kSplit ? load<Sum>(place(r, v)) : Sum{};
    }
  }
  const uint32_t* x = args.x;
  const uint8_t* weight = args.weight;
  const uint8_t* ahead = args.ahead;
  int64_t begun = 0;  // steps whose products are in the sums in memory
  for (int64_t step = 0; step < args.steps; ++step) {
    if constexpr (kSplit) {
      if (step == begun + Product::kMostSteps) {
        add_split(sums, begun > 0 || args.resume, place);
        begun = step;
      }
    }
#pragma GCC unroll 4
    for (int s = 0; s < kStrips; ++s) {
      __builtin_prefetch(ahead + s * args.ahead_strip);
      __builtin_prefetch(ahead + s * args.ahead_strip + 64);
    }
#pragma GCC unroll 2
    for (int u = 0; u < Product::kUnits; ++u) {
      typename Product::Weight w[kStrips * kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kStrips * kVectors; ++v) {
        const uint8_t* strip = weight + (v / kVectors) * args.strip_bytes;
        w[v] = Product::weight(strip + (v % kVectors) * sizeof(Vector), u);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto b = Product::broadcast(x + u * kRows + r);
#pragma GCC unroll 16
        for (int v = 0; v < kStrips * kVectors; ++v) {
          sums[r][v] = Product::multiply_add(sums[r][v], b, w[v]);
        }
      }
    }
    x += Product::kUnits * kRows;
    weight += kStepBytes;
    ahead += args.ahead_step;
  }
  if constexpr (kSplit) return add_split(sums, begun > 0 || args.resume, place);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kStrips * kVectors; ++v) store(place(r, v), sums[r][v]);
  }
}

// All 32 columns of one strip or several, in as many column blocks as the registers ask for.
template <class Product, int kRows>
void multiply_rows(MicroArgs& args, int64_t strips) {
  if constexpr (kRows > kWideRows) {
    for (int c = 0; c < kStripColumns; c += kTallColumns) {
      micro_kernel<Product, kRows, kTallColumns, 1>(args);
      args.weight += kTallColumns * 4;
      args.sums += kTallColumns;
    }
  } else {
    constexpr int kMost = static_cast<int>(strips_for_rows(kRows));
    if (strips == kMost) return micro_kernel<Product, kRows, 32, kMost>(args);
    for (int64_t s = 0; s < strips; ++s) {
      micro_kernel<Product, kRows, 32, 1>(args);
      args.weight += args.strip_bytes;
      args.sums += args.sums_strip;
    }
  }
}

template <class Product, size_t... kRows>
void dispatch_rows(int64_t rows, MicroArgs& args, int64_t strips, std::index_sequence<kRows...>) {
  using Function = void (*)(MicroArgs&, int64_t);
  static constexpr Function kTable[] = {multiply_rows<Product, static_cast<int>(kRows) + 1>...};
  kTable[rows - 1](args, strips);
}

// Weights that lie in memory as the micro-kernel reads them, and weights that do not.
struct PlainWeights {
  static constexpr bool kExpanded = false;
  static constexpr int64_t kDepth = 1;
};
struct Int4Weights {
  static constexpr bool kExpanded = true;
  static constexpr int64_t kDepth = kSlabDepth;
};

// Some of K of a block, as its micro-kernels go through it.
struct Part {
  const uint8_t* weight;  // first strip; the next strip_bytes further
  int64_t strip_bytes;
  int64_t k;
  int64_t depth;
  bool last;             // K ends here
  const uint8_t* ahead;  // to be prefetched meanwhile, ahead_bytes of each strip
  int64_t ahead_bytes;
};

template <class Product, class Weights = PlainWeights>
struct VectorFamily {
  static constexpr int64_t kDepth =
      std::max<int64_t>(Product::kDepth * Product::kStepsTogether, Weights::kDepth);
  static constexpr int64_t kPlanes = Product::kSums;
  static constexpr int64_t kMaxTileRows = kMaxVectorRows / Product::kPlanes;

  // Whether a tile has the sums of x in each group, [slab][row][plane], after the scales.
  static constexpr bool kHasTotals = Weights::kExpanded && Product::kUnits == 1;

  static bool available() { return true; }

  // Whether rows of x have outliers.
  static constexpr bool kHasOutliers = Product::kQuantised && Product::kSums == 1;

  // The units, and after them the scales of the rows where x is quantised, and their
  // outliers.
  static int64_t units_bytes(int64_t rows, int64_t k) {
    return rows * Product::kPlanes * (k / Product::kDepth) * Product::kUnits * 4;
  }
  static int64_t outliers_at(int64_t rows, int64_t k) {
    return units_bytes(rows, k) + (Product::kQuantised ? rows * 4 : 0);
  }
  static int64_t totals_at(int64_t rows, int64_t k) {
    return outliers_at(rows, k) +
           (kHasOutliers ? rows * static_cast<int64_t>(sizeof(RowOutliers)) : 0);
  }
  static int64_t tile_bytes(int64_t rows, int64_t k) {
    return totals_at(rows, k) + (kHasTotals ? rows * kPlanes * (k / kSlabDepth) * 4 : 0);
  }

  static int64_t strips_at_once(int64_t rows, int64_t tiles) {
    // Few rows read each strip on its own.
    if constexpr (Weights::kExpanded) {
      if (Product::kUnits == 1 && rows * kPlanes <= kDirectRows) return 1;
    }
    return tiles == 1 ? strips_for_rows(rows * Product::kPlanes) : 1;
  }

  static void pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                        int64_t k_padded, uint8_t* out) {
    RowScale scales[kMaxTileRows] = {};
    if constexpr (Product::kQuantised) {
      auto* kept = reinterpret_cast<float*>(out + units_bytes(tile_rows, k_padded));
      for (int64_t r = 0; r < rows; ++r) {
        if constexpr (kHasOutliers) {
          const OutlierRow found = outlier_row(x, row0 + r);
          scales[r] = found.by;
          std::memcpy(out + outliers_at(tile_rows, k_padded) + r * sizeof found.outliers,
                      &found.outliers, sizeof found.outliers);
        } else {
          scales[r] = row_scale(x, row0 + r, limit_of(Product::kBytes));
        }
        kept[r] = scales[r].scale;
      }
    }
    auto* to = reinterpret_cast<uint32_t*>(out);
    constexpr int kUnitRows = kMaxVectorRows < kPartLanes ? kPartLanes : kMaxVectorRows;
    uint32_t units[kUnitRows][kSegment] = {};
    for (int64_t k = 0; k < k_padded; k += kSegment) {
      const int64_t width = std::min(kSegment, k_padded - k) / Product::kDepth * Product::kUnits;
      // Reading the rows back waits for all that was written before: let none of it miss.
      const int64_t lines = rows * Product::kPlanes;
      for (int64_t i = 0; i < width * lines; i += 16) __builtin_prefetch(to + i, 1);
      for (int64_t r = 0; r < rows; ++r) {
        Product::units_of(x, row0 + r, k, std::min(kSegment, x.k - k), scales[r].inverse,
                          units + r * Product::kPlanes);
      }
      if constexpr (kHasTotals) {
        using Byte = std::conditional_t<Product::kUnsignedX, uint8_t, int8_t>;
        auto* totals = reinterpret_cast<uint32_t*>(out + totals_at(tile_rows, k_padded));
        totals += k / kSlabDepth * lines;
        for (int64_t i = 0; i < lines; ++i) totals[i] = slab_totals<Byte>(units[i]);
      }
      interleave(units[0], kSegment, lines, width, to);
      to += width * lines;
    }
  }

  static void begin(int64_t /*tile_rows*/, Format) {}
  static void end() {}

  static void multiply(const Block& block) {
    if constexpr (Weights::kExpanded) {
      multiply_int4(block);
    } else {
      const uint8_t* ahead = block.tiles == 1 ? block.weight + kAheadBytes : block.next;
      multiply_part(block,
                    {block.weight, block.strip_bytes, 0, block.k, true, ahead, block.strip_bytes});
    }
  }

 protected:
  // Where the sums of a tile are formed. All tiles use the same place, which stays in the
  // first-level cache, unless their sums are resumed later.
  static float* sums_of(const Block& block, int64_t strip, int64_t tile) {
    if constexpr (Weights::kExpanded) return block.sums_of(strip, tile);
    return block.sums + strip * block.rows * kStripColumns;
  }

  static const uint32_t* totals_of(const Block& block, int64_t tile) {
    const uint8_t* x = block.x + tile * block.tile_bytes;
    return reinterpret_cast<const uint32_t*>(x + totals_at(block.rows / kPlanes, block.k));
  }

  static void finish(const Block& block, int64_t tile) {
    Sums sums{};
    if constexpr (Product::kQuantised) {
      const uint8_t* x = block.x + tile * block.tile_bytes;
      const int64_t scales_at = units_bytes(block.rows / kPlanes, block.k);
      sums.row_scales = reinterpret_cast<const float*>(x + scales_at);
      sums.shifted = Product::kUnsignedX;
      sums.int4 = Weights::kExpanded;
      if constexpr (kHasOutliers) {
        const int64_t at = outliers_at(block.rows / kPlanes, block.k);
        sums.outliers = reinterpret_cast<const RowOutliers*>(x + at);
      }
      if constexpr (Product::kSums > Product::kPlanes) sums.upper_bits = 8;
    }
    for (int64_t strip = 0; strip < block.strips; ++strip) {
      sums.data = sums_of(block, strip, tile);
      block.finish(strip, tile, sums);
    }
  }

 private:
  static void multiply_int4(const Block& block) {
    // Without an instruction for whole bytes, expanding costs the same.
    if constexpr (Product::kUnits == 1) {
      if (block.tiles == 1 && block.rows <= kDirectRows) {
        multiply_direct<Product>(block, totals_of(block, 0),
                                 std::make_index_sequence<kDirectRows>{});
        return finish(block, 0);
      }
    }
    multiply_expanded(block);
  }

  // Expands as much of K as fits for all strips, multiplies, and goes on with the next.
  static void multiply_expanded(const Block& block) {
    alignas(64) uint8_t expanded[kExpandedBytes];
    const int64_t most = kExpandedBytes / block.strips / kExpandedSlabBytes;
    const int64_t slabs = block.k / kSlabDepth;
    for (int64_t done = 0; done < slabs; done += most) {
      const int64_t count = std::min(most, slabs - done);
      const uint8_t* first = block.weight + done * kSlabBytes;
      for (int64_t s = 0; s < block.strips; ++s) {
        expand_slabs(first + s * block.strip_bytes, count,
                     expanded + s * most * kExpandedSlabBytes);
      }
      const bool last = done + count == slabs;
      multiply_part(
          block, {expanded, most * kExpandedSlabBytes, done * kSlabDepth, count * kSlabDepth, last,
                  last ? block.next : first + count * kSlabBytes, most * kSlabBytes});
    }
  }

  static void multiply_part(const Block& block, const Part& part) {
    const int64_t steps = part.depth / Product::kDepth;
    for (int64_t tile = 0; tile < block.tiles; ++tile) {
      const int64_t rows = block.rows_of(tile) / kPlanes;
      const int64_t lines = rows * Product::kPlanes;
      if (part.k == 0) {
        const int64_t first = tile * block.rows / kPlanes;
        fetch_destinations(block, first, first + rows);
      }
      const auto* x = reinterpret_cast<const uint32_t*>(block.x + tile * block.tile_bytes);
      MicroArgs args{x + part.k / Product::kDepth * Product::kUnits * lines,
                     part.weight,
                     steps,
                     part.strip_bytes,
                     part.ahead + tile * (part.ahead_bytes / block.tiles),
                     ceil_div(part.ahead_bytes, steps * block.tiles),
                     block.strip_bytes,
                     sums_of(block, 0, tile),
                     sums_of(block, 1, tile) - sums_of(block, 0, tile),
                     part.k > 0};
      dispatch_rows<Product>(lines, args, block.strips, std::make_index_sequence<kMaxVectorRows>{});
      if (part.last) finish(block, tile);
    }
  }
};

}  // namespace quire::gemm

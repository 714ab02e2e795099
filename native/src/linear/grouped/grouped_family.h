// Products with grouped weights: whole numbers within a group, float32 from group to group.
//
// The arithmetic of one output, for every tier and every number of rows: x is rounded to whole
// numbers with one scale a row, as in the other integer formats. For each group, from K = 0
// upwards,
//   sum += float(dot(x, table numbers) - zero * sum(x)) * scale
//   sum += float(sum(x)) * minimum, if there is one
// with each product and each sum rounded to float32. Then x's scale multiplies the sum. Within a
// group whole numbers are summed, which have no order; groups have one.
#pragma once

#include <algorithm>
#include <utility>

#include "linear/grouped/grouped_products.h"
#include "linear/vector_family.h"

namespace quire::gemm {

// x in a tile: its units, then for each row running totals of its numbers, one for every
// kTotalDepth of K, and the row's scale.
constexpr int64_t kTotalDepth = 16;

template <int kPlanes_>
struct GroupedFamily {
  using Product = GroupedProduct<kPlanes_>;

  static constexpr int64_t kDepth = 128;  // the largest group
  static constexpr int64_t kPlanes = kPlanes_;
  static constexpr int64_t kMaxTileRows = kMaxVectorRows / kPlanes;

  static bool available() { return true; }

  static int64_t units_bytes(int64_t rows, int64_t k) {
    return rows * kPlanes * (k / Product::kDepth) * Product::kUnits * 4;
  }
  static int64_t totals_bytes(int64_t rows, int64_t k) { return rows * (k / kTotalDepth + 1) * 4; }
  static int64_t tile_bytes(int64_t rows, int64_t k) {
    return units_bytes(rows, k) + totals_bytes(rows, k) + rows * 4;
  }

  static int64_t strips_at_once(int64_t rows, int64_t tiles) {
    return tiles == 1 ? strips_for_rows(rows * kPlanes) : 1;
  }

  static void pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                        int64_t k_padded, uint8_t* out) {
    auto* totals = reinterpret_cast<uint32_t*>(out + units_bytes(tile_rows, k_padded));
    auto* scales = reinterpret_cast<float*>(out + units_bytes(tile_rows, k_padded) +
                                            totals_bytes(tile_rows, k_padded));
    RowScale row_scales[kMaxTileRows] = {};
    uint32_t total[kMaxTileRows] = {};
    for (int64_t r = 0; r < rows; ++r) {
      row_scales[r] = row_scale(x, row0 + r, limit_of(kPlanes));
      scales[r] = row_scales[r].scale;
      totals[r] = 0;
    }
    auto* to = reinterpret_cast<uint32_t*>(out);
    constexpr int kUnitRows = kMaxVectorRows < kPartLanes ? kPartLanes : kMaxVectorRows;
    uint32_t units[kUnitRows][kSegment] = {};
    for (int64_t k = 0; k < k_padded; k += kSegment) {
      const int64_t depth = std::min(kSegment, k_padded - k);
      for (int64_t r = 0; r < rows; ++r) {
        int8_t planes[kPlanes][kSegment];
        // A group may be longer than a segment, and so there may be segments behind the end.
        const int64_t count = std::clamp<int64_t>(x.k - k, 0, kSegment);
        quantise_segment<kPlanes>(x, row0 + r, k, count, row_scales[r].inverse, planes[0],
                                  kSegment);
        Product::units_of(planes, units + r * kPlanes);
        for (int64_t i = 0; i < depth; i += kTotalDepth) {
          total[r] += static_cast<uint32_t>(total_of(planes, i));
          totals[((k + i) / kTotalDepth + 1) * tile_rows + r] = total[r];
        }
      }
      const int64_t width = depth / Product::kDepth * Product::kUnits;
      interleave(units[0], kSegment, rows * kPlanes, width, to);
      to += width * rows * kPlanes;
    }
  }

  static void begin(int64_t) {}
  static void end() {}

  static void multiply(const Block& block) {
    const GroupedStrip layout(block.args->weight->format, block.args->weight->k);
    switch (layout.grouping.table) {
      case QUIRE_TABLE_U4:
      case QUIRE_TABLE_S4:
        return multiply_codes<PlainCodes>(block, layout);
      case QUIRE_TABLE_S8:
        return multiply_codes<ByteCodes>(block, layout);
      default:
        return multiply_codes<TableCodes>(block, layout);
    }
  }

 private:
  static int32_t total_of(const int8_t (&planes)[kPlanes][kSegment], int64_t first) {
    int32_t total = 0;
    for (int p = 0; p < kPlanes; ++p) {
      int32_t sum = 0;
      for (int64_t i = first; i < first + kTotalDepth; ++i) sum += planes[p][i];
      total = total * 256 + sum;
    }
    return total;
  }

  template <class Codes>
  static void multiply_codes(const Block& block, const GroupedStrip& layout) {
    for (int64_t tile = 0; tile < block.tiles; ++tile) {
      // Rows of a lower last tile have the distances of a tile of their own.
      const int64_t rows = block.rows_of(tile) / kPlanes;
      const uint8_t* x = block.x + tile * block.tile_bytes;
      const int64_t totals_rows = block.rows / kPlanes;
      const int64_t totals_at = units_bytes(totals_rows, block.k);
      const int64_t scales_at = totals_at + totals_bytes(totals_rows, block.k);
      Sums sums{};
      sums.row_scales = reinterpret_cast<const float*>(x + scales_at);
      sums.grouped = true;
      sums.data = block.sums;
      for (int64_t s = 0; s < block.strips; ++s) {
        GroupedArgs args{reinterpret_cast<const uint32_t*>(x),
                         reinterpret_cast<const uint32_t*>(x + totals_at),
                         totals_rows,
                         block.weight + s * block.strip_bytes,
                         &layout,
                         block.sums};
        dispatch<Codes>(rows, args, std::make_index_sequence<kMaxTileRows>{});
        block.finish(s, tile, sums);
      }
    }
  }

  template <class Codes, size_t... kRows>
  static void dispatch(int64_t rows, const GroupedArgs& args, std::index_sequence<kRows...>) {
    using Function = void (*)(const GroupedArgs&);
    static constexpr Function kTable[] = {
        grouped_rows<Product, Codes, static_cast<int>(kRows) + 1>...};
    kTable[rows - 1](args);
  }
};

}  // namespace quire::gemm

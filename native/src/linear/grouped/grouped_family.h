// Products with grouped weights: whole numbers within a group, float32 from group to group.
//
// The arithmetic of one output, for every tier and every number of rows: x is rounded to whole
// numbers, with one scale a row or (kBlocks) one for each 32 numbers of it. For each group, from
// K = 0 upwards,
//   sum += float(dot(x, table numbers) - zero * sum(x)) * scale
//   sum += float(sum(x)) * minimum, if there is one
// each of these one fused multiplication and addition where the tier has such an instruction. With
// blocks x's scale multiplies first: the weights' scale, and float(sum(x)). Without, it multiplies
// the sum at the end. Within a group whole numbers are summed, which have no order; groups have
// one.
#pragma once

#include <algorithm>
#include <utility>

#include "linear/grouped/expanded_groups.h"
#include "linear/grouped/grouped_products.h"
#include "linear/vector_family.h"

namespace quire::gemm {

// So far ahead of what is multiplied memory is fetched.
constexpr int64_t kChunkAhead = 8192;

template <class Product_, bool kBlocks = false,
          int64_t kMostRows = grouped_rows_for(Product_::kPlanes)>
struct GroupedFamily {
  using Product = Product_;

  static constexpr int64_t kDepth = 128;  // the largest group
  static constexpr int64_t kPlanes = Product::kPlanes;
  static constexpr int64_t kBytes = Product::kBytes;
  static constexpr int64_t kMaxTileRows = kMostRows * kFewRowsFactor;
  static constexpr int64_t kManyTilesRows = kExpandsGroups ? kMaxTileRows : kMostRows;

  static int64_t units_bytes(int64_t rows, int64_t k) {
    return rows * kPlanes * (k / Product::kDepth) * Product::kUnits * 4;
  }
  static int64_t totals_bytes(int64_t rows, int64_t k) { return rows * (k / kTotalDepth + 1) * 4; }
  static int64_t blocks_bytes(int64_t rows, int64_t k) {
    return kBlocks ? rows * round_up(k, kSegment) / kXBlock * 4 : 0;
  }
  static int64_t tile_bytes(int64_t rows, int64_t k) {
    return units_bytes(rows, k) + totals_bytes(rows, k) + blocks_bytes(rows, k) + rows * 4;
  }

  // Each is read on its own.
  static int64_t strips_at_once(int64_t /*rows*/, int64_t /*tiles*/) { return 1; }

  static void pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                        int64_t k_padded, uint8_t* out) {
    const Tile tile(out, tile_rows, k_padded);
    Planes planes[kMaxTileRows];
    uint32_t* to = tile.units;
    constexpr int kUnitRows = kMaxVectorRows < kPartLanes ? kPartLanes : kMaxVectorRows;
    uint32_t units[kUnitRows][kSegment] = {};
    const auto place = [&](int64_t r, int64_t /*k*/) -> Planes& { return planes[r]; };
    quantise(x, row0, rows, tile_rows, k_padded, tile, place, [&](int64_t depth) {
      for (int64_t r = 0; r < rows; ++r) Product::units_of(planes[r], units + r * kPlanes);
      const int64_t width = depth / Product::kDepth * Product::kUnits;
      interleave(units[0], kSegment, rows * kPlanes, width, to);
      to += width * rows * kPlanes;
    });
  }

  static void begin(int64_t /*tile_rows*/, Format) {}
  static void end() {}

  static void multiply(const Block& block) {
    const GroupedStrip layout(block.args->weight->format, block.args->weight->k);
    with_codes(layout.grouping.table, [&](auto tag) {
      using Codes = typename decltype(tag)::Codes;
      constexpr bool kOfRows = kBytes == 1 && !kBlocks;
      if constexpr (Product::takes(Codes::kLargest) && (Codes::kOfRows || !kOfRows)) {
#if defined(QUIRE_PAIRS_OF_BYTES)
        if (block.tiles >= kTilesOfExpanded<Codes>) return multiply_expanded<Codes>(block, layout);
#endif
        multiply_codes<Codes>(block, layout);
      }
    });
  }

 protected:
  // Bytes of one row of x, in one segment.
  using Planes = int8_t[kBytes][kSegment];

  // Where the parts of a packed tile lie: the units of x, then for each row running totals of its
  // numbers, one for every kTotalDepth of K, the scales of its blocks, and the row's scale.
  struct Tile {
    uint32_t* units;
    uint32_t* totals;
    float* x_scales;
    float* row_scales;

    Tile(uint8_t* data, int64_t rows, int64_t k, int64_t bytes_of_units)
        : units(reinterpret_cast<uint32_t*>(data)),
          totals(reinterpret_cast<uint32_t*>(data + bytes_of_units)),
          x_scales(reinterpret_cast<float*>(totals) + totals_bytes(rows, k) / 4),
          row_scales(x_scales + blocks_bytes(rows, k) / 4) {}
    Tile(uint8_t* data, int64_t rows, int64_t k) : Tile(data, rows, k, units_bytes(rows, k)) {}
  };

  // Writes what a tile has besides its units. Of every segment of a row the bytes go where
  // `place(row, k)` says; `done(depth)` follows when those of all rows are there.
  template <class Place, class Done>
  static void quantise(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                       int64_t k_padded, const Tile& tile, Place place, Done done) {
    float inverses[kMostRowsOfTiles] = {};
    uint32_t total[kMostRowsOfTiles] = {};
    for (int64_t r = 0; r < rows; ++r) {
      tile.row_scales[r] = 1.0f;
      tile.totals[r] = 0;
      if constexpr (kBlocks) continue;
      const RowScale found = row_scale(x, row0 + r, limit_of(kBytes));
      tile.row_scales[r] = found.scale;
      inverses[r] = found.inverse;
    }
    for (int64_t k = 0; k < k_padded; k += kSegment) {
      const int64_t depth = std::min(kSegment, k_padded - k);
      // A group may be longer than a segment, so there may be segments after the end.
      const int64_t count = std::clamp<int64_t>(x.k - k, 0, kSegment);
      for (int64_t r = 0; r < rows; ++r) {
        Planes& planes = place(r, k);
        if constexpr (kBlocks) {
          float scales[kSegment / kXBlock];
          tile.row_scales[r] += quantise_blocks(x, row0 + r, k, count, planes[0], scales);
          for (int64_t b = 0; b < kSegment / kXBlock; ++b) {
            tile.x_scales[(k / kXBlock + b) * tile_rows + r] = scales[b];
          }
        } else {
          quantise_segment<kBytes>(x, row0 + r, k, count, inverses[r], planes[0], kSegment);
        }
        int32_t found[kSegment / kTotalDepth];
        totals_of(planes, found);
        for (int64_t i = 0; i < depth / kTotalDepth; ++i) {
          total[r] += static_cast<uint32_t>(found[i]);
          tile.totals[(k / kTotalDepth + i + 1) * tile_rows + r] = total[r];
        }
      }
      done(depth);
    }
  }

  // Makes outputs of the sums of a tile with a strip.
  static void finish(const Block& block, int64_t s, int64_t tile, const Tile& x) {
    Sums found{};
    found.row_scales = x.row_scales;
    found.grouped = true;
    found.data = block.sums_of(s, tile);
    block.finish(s, tile, found);
  }

 private:
  static void totals_of(const Planes& planes, int32_t (&out)[kSegment / kTotalDepth]) {
    total_bytes(planes[0], out);
    for (int p = 1; p < kBytes; ++p) {
      int32_t low[kSegment / kTotalDepth];
      total_bytes(planes[p], low);
      for (int64_t i = 0; i < kSegment / kTotalDepth; ++i) out[i] = out[i] * 256 + low[i];
    }
  }

  // Some groups of a strip with all tiles, then the next groups: what the groups have is widened
  // once for all rows. With one tile that is a chunk at a time, as memory is read.
  template <class Codes>
  static void multiply_codes(const Block& block, const GroupedStrip& layout) {
    WideNumbers numbers;
    const int64_t most = block.tiles == 1 ? layout.chunk_groups : kGroupsAtOnce;
    const uint8_t* end = block.weight + (block.strips - 1) * block.strip_bytes + layout.bytes;
    for (int64_t s = 0; s < block.strips; ++s) {
      const uint8_t* strip = block.weight + s * block.strip_bytes;
      for (int64_t g = 0; g < layout.groups; g += most) {
        const int64_t count = std::min(most, layout.groups - g);
        const uint8_t* chunk = strip + layout.chunk_of(g);
        const bool is_last = chunk + layout.codes_at + kChunkAhead >= end;
        const int64_t ahead = kChunkAhead + (is_last ? block.next - end : 0);
        fetch_bytes(chunk + ahead, layout.codes_at);
        widen(layout, strip, g, count, numbers);
        for (int64_t tile = 0; tile < block.tiles; ++tile) {
          multiply_tile<Codes>(block, layout, numbers, ahead, s, tile, g, count);
        }
      }
    }
  }

  template <class Codes>
  static void multiply_tile(const Block& block, const GroupedStrip& layout,
                            const WideNumbers& numbers, int64_t ahead, int64_t s, int64_t tile,
                            int64_t first, int64_t count) {
    const Grouping& grouping = layout.grouping;
    const uint8_t* strip = block.weight + s * block.strip_bytes;
    // Rows of a lower last tile have the distances of a tile of their own.
    const int64_t rows = block.rows_of(tile) / kPlanes;
    const Tile x(const_cast<uint8_t*>(block.x) + tile * block.tile_bytes, block.rows / kPlanes,
                 block.k);
    float* sums = block.sums_of(s, tile);
    if (first == 0) std::fill_n(sums, rows * kStripColumns, 0.0f);
    const int64_t k = first * grouping.group;
    const GroupedArgs args{x.units + k / Product::kDepth * Product::kUnits * rows * kPlanes,
                           x.totals,
                           x.x_scales,
                           block.rows / kPlanes,
                           strip + layout.chunk_of(first),
                           ahead,
                           numbers.scales,
                           grouping.minima ? numbers.minima : nullptr,
                           &layout,
                           first,
                           count,
                           sums};
    dispatch<Codes>(rows, args, std::make_index_sequence<kMaxTileRows>{});
    if (first + count == layout.groups) finish(block, s, tile, x);
  }

#if defined(QUIRE_PAIRS_OF_BYTES)
  // A chunk with all tiles, then the next one.
  template <class Codes>
  static void multiply_expanded(const Block& block, const GroupedStrip& layout) {
    WideNumbers numbers;
    ExpandedChunk expanded;
    const uint8_t* end = block.weight + (block.strips - 1) * block.strip_bytes + layout.bytes;
    for (int64_t s = 0; s < block.strips; ++s) {
      const uint8_t* strip = block.weight + s * block.strip_bytes;
      for (int64_t g = 0; g < layout.groups; g += layout.chunk_groups) {
        const int64_t count = std::min(layout.chunk_groups, layout.groups - g);
        const uint8_t* chunk = strip + layout.chunk_of(g);
        const uint8_t* next = chunk + layout.chunk_bytes;
        if (next >= end) next = block.next;
        const int64_t share = ceil_div(layout.chunk_bytes, block.tiles);
        widen(layout, strip, g, count, numbers);
        expand_chunk<Product, Codes>(layout, chunk, count, expanded);
        for (int64_t tile = 0; tile < block.tiles; ++tile) {
          fetch_bytes(next + tile * share, share);
          multiply_tile_expanded<Codes>(block, layout, numbers, expanded, s, tile, g, count);
        }
      }
    }
  }

  template <class Codes>
  static void multiply_tile_expanded(const Block& block, const GroupedStrip& layout,
                                     const WideNumbers& numbers, const ExpandedChunk& expanded,
                                     int64_t s, int64_t tile, int64_t first, int64_t count) {
    const Grouping& grouping = layout.grouping;
    const int64_t rows = block.rows_of(tile);
    const Tile x(const_cast<uint8_t*>(block.x) + tile * block.tile_bytes, block.rows, block.k);
    float* sums = block.sums_of(s, tile);
    if (first == 0) std::fill_n(sums, rows * kStripColumns, 0.0f);
    const int64_t k = first * grouping.group;
    GroupsOfX of_x;
    const int64_t distance = grouping.group / kTotalDepth * block.rows;
    for (int64_t g = 0; g < count; ++g) {
      const uint32_t* before = x.totals + (first + g) * distance;
      const float* scales = x.x_scales + (first + g) * grouping.group / kXBlock * block.rows;
      for (int64_t r = 0; r < rows; ++r) {
        const auto total = static_cast<int32_t>(before[distance + r] - before[r]);
        of_x.totals[g * rows + r] = total;
        of_x.scaled_totals[g * rows + r] = static_cast<float>(total);
        if constexpr (kBlocks) {
          of_x.scaled_totals[g * rows + r] *= scales[r];
          of_x.scales[g * rows + r] = scales[r];
        }
      }
    }
    const ExpandedArgs args{x.units + k / Product::kDepth * Product::kUnits * rows,
                            &of_x,
                            &expanded,
                            numbers.scales,
                            numbers.minima,
                            count,
                            grouping.group / 4,
                            grouping.zeros || kTables[grouping.table].zero != Codes::kLess,
                            sums};
    multiply_expanded_rows<Product, Codes, kBlocks>(rows, grouping.minima, args);
    if (first + count == layout.groups) finish(block, s, tile, x);
  }
#endif

  template <class Codes, size_t... kRows>
  static void dispatch(int64_t rows, const GroupedArgs& args, std::index_sequence<kRows...>) {
    using Function = void (*)(const GroupedArgs&);
    static constexpr Function kTable[] = {
        grouped_rows<Product, Codes, static_cast<int>(kRows) + 1, kBlocks>...};
    kTable[rows - 1](args);
  }
};

}  // namespace quire::gemm

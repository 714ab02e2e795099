// Products with grouped weights whose codes stand for floats.
//
// The arithmetic of one output, for every number of rows: within a group a sum is formed as the
// dense product of the tier forms it over K, of x and the numbers of the codes. Then, from K = 0
// upwards, each group's sum is multiplied by its scale and added to the total, in one rounding
// where the tier has such an instruction.
//
// A group is written out as dense lines into the first-level cache, and multiplied with all rows by
// the dense micro-kernel. Few rows meet the codes as they are (float_direct.h).
#pragma once

#include <algorithm>
#include <utility>

#include "linear/grouped/float_codes.h"
#include "linear/grouped/float_direct.h"
#include "linear/vector_family.h"

namespace quire::gemm {

// x is rounded to bfloat16; the numbers are multiplied as float32, in which both are exact.
struct RoundedF32 : F32Product {
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kSegment]) {
    uint16_t segment[kSegment];
    read_segment(x, row, k, count, segment);
    for (int64_t i = 0; i < kSegment; ++i) out[0][i] = static_cast<uint32_t>(segment[i]) << 16;
    static_cast<void>(inverse);
  }
};

template <class Product_, class Codes_>
struct FloatFamily {
  using Product = Product_;
  using Codes = Codes_;
  using Dense = VectorFamily<Product>;

  static constexpr int64_t kDepth = 128;  // the largest group
  static constexpr int64_t kPlanes = 1;
  static constexpr int64_t kMaxTileRows = Dense::kMaxTileRows;
  static constexpr int64_t kMostLines = kDepth / Codes::kLineDepth * kLineBytes;

  static int64_t tile_bytes(int64_t rows, int64_t k) { return Dense::tile_bytes(rows, k); }

  // Each is read on its own.
  static int64_t strips_at_once(int64_t /*rows*/, int64_t /*tiles*/) { return 1; }

  static void pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                        int64_t k_padded, uint8_t* out) {
    Dense::pack_tile(x, row0, rows, tile_rows, k_padded, out);
  }

  static void begin(int64_t /*tile_rows*/, Format) {}
  static void end() {}

  static void multiply(const Block& block) {
    const GroupedStrip layout(block.args->weight->format, block.args->weight->k);
    const Codes codes(layout.grouping.table);
    for (int64_t s = 0; s < block.strips; ++s) {
      const Strip strip{block, layout, codes, s, block.weight + s * block.strip_bytes};
      if (block.tiles == 1 && block.rows <= kDirectFloatRows<Codes>) {
        multiply_direct(strip);
      } else {
        multiply_lines(strip);
      }
    }
  }

 private:
  struct Strip {
    const Block& block;
    const GroupedStrip& layout;
    const Codes& codes;
    int64_t number;
    const uint8_t* data;

    // What this worker reads after it.
    const uint8_t* next() const {
      return number + 1 < block.strips ? data + block.strip_bytes : block.next;
    }
    void finish(int64_t tile) const {
      Sums found{};
      found.data = block.sums_of(number, tile);
      block.finish(number, tile, found);
    }
  };

  static void multiply_direct(const Strip& strip) {
    const Block& block = strip.block;
    fetch_destinations(block, 0, block.rows);
    FloatStrip direct{&strip.layout, strip.data, strip.next(),
                      reinterpret_cast<const uint32_t*>(block.x), block.sums_of(strip.number, 0)};
    dispatch_direct(block.rows, strip.codes, direct,
                    std::make_index_sequence<kDirectFloatRows<Codes>>{});
    strip.finish(0);
  }

  static void multiply_lines(const Strip& strip) {
    alignas(64) uint8_t lines[kMostLines];
    const GroupedStrip& layout = strip.layout;
    for (int64_t g = 0; g < layout.groups; ++g) {
      write_lines(strip.codes, strip.data + codes_at(layout, g), layout.grouping.group, lines);
      for (int64_t tile = 0; tile < strip.block.tiles; ++tile) multiply_tile(strip, g, tile, lines);
    }
  }

  static int64_t codes_at(const GroupedStrip& layout, int64_t group) {
    const int64_t within = group % layout.chunk_groups;
    return layout.chunk_of(group) + layout.codes_at +
           layout.step.bytes_of(within * layout.grouping.group);
  }

  static void multiply_tile(const Strip& strip, int64_t g, int64_t tile, const uint8_t* lines) {
    const Block& block = strip.block;
    const GroupedStrip& layout = strip.layout;
    const int64_t rows = block.rows_of(tile);
    const int64_t depth = layout.grouping.group;
    const bool is_last = g + 1 == layout.groups;
    if (is_last) fetch_destinations(block, tile * block.rows, tile * block.rows + rows);
    alignas(64) float sums[kMaxTileRows * kStripColumns];
    const auto* x = reinterpret_cast<const uint32_t*>(block.x + tile * block.tile_bytes);
    const int64_t steps = depth / Product::kDepth;
    const int64_t fetched = layout.step.bytes_of(depth);
    const uint8_t* next =
        is_last ? strip.next() + layout.codes_at : strip.data + codes_at(layout, g + 1);
    MicroArgs args{x + g * steps * Product::kUnits * rows,
                   lines,
                   steps,
                   0,
                   next + tile * (fetched / block.tiles),
                   ceil_div(fetched, steps * block.tiles),
                   0,
                   sums,
                   0,
                   false};
    dispatch_lines(rows, args, std::make_index_sequence<kMaxTileRows>{});
    const uint8_t* chunk = strip.data + layout.chunk_of(g);
    const auto* scales = reinterpret_cast<const float*>(chunk) + layout.index_of(g, 0);
    add_scaled(sums, scales, rows, g == 0, block.sums_of(strip.number, tile));
    if (is_last) strip.finish(tile);
  }

  static QUIRE_INLINE void add_scaled(const float* sums, const float* scales, int64_t rows,
                                      bool is_first, float* totals) {
    for (int64_t c = 0; c < kStripColumns; c += kVectorLanes) {
      const auto scale = load<Vector>(scales + c);
      for (int64_t i = c; i < rows * kStripColumns; i += kStripColumns) {
        const Vector total = is_first ? Vector{} : load<Vector>(totals + i);
        store(totals + i, fused(total, load<Vector>(sums + i), scale));
      }
    }
  }

  template <int kRows>
  static void lines_of_rows(MicroArgs& args) {
    if constexpr (kRows <= kWideRows) {
      micro_kernel<Product, kRows, 32, 1>(args);
    } else {
      for (int c = 0; c < kStripColumns; c += kTallColumns) {
        micro_kernel<Product, kRows, kTallColumns, 1>(args);
        args.weight += kTallColumns * 4;
        args.sums += kTallColumns;
      }
    }
  }

  template <size_t... kRows>
  static void dispatch_lines(int64_t rows, MicroArgs& args, std::index_sequence<kRows...>) {
    using Function = void (*)(MicroArgs&);
    static constexpr Function kTable[] = {lines_of_rows<static_cast<int>(kRows) + 1>...};
    kTable[rows - 1](args);
  }

  template <size_t... kRows>
  static void dispatch_direct(int64_t rows, const Codes& codes, const FloatStrip& strip,
                              std::index_sequence<kRows...>) {
    using Function = void (*)(const Codes&, const FloatStrip&);
    static constexpr Function kTable[] = {
        multiply_float_strip<Product, Codes, static_cast<int>(kRows) + 1>...};
    kTable[rows - 1](codes, strip);
  }
};

}  // namespace quire::gemm

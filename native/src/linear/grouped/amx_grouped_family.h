// Grouped products of five or more rows on AMX tiles; fewer rows go to GroupedFamily.
#pragma once

#include "linear/grouped/amx_groups.h"
#include "linear/grouped/grouped_family.h"

namespace quire::gemm {

// Fewer rows of x take less time on vector registers.
constexpr int64_t kFewestRowsOnTiles = 5;

// Groups of 16, and x whose blocks have scales, are left to GroupedFamily: sums of whole numbers,
// which tiles make fast, take the smaller part of the time there.
template <class Product>
struct AmxGroupedFamily : GroupedFamily<Product, false, kFewestRowsOnTiles - 1> {
  using Few = GroupedFamily<Product, false, kFewestRowsOnTiles - 1>;
  static_assert(kFewestRowsOnTiles - 1 <= grouped_rows_for(Product::kPlanes));

  static constexpr int64_t kPlanes = Product::kPlanes;
  static constexpr int64_t kMaxTileRows = kMostRowsOfTiles;

  static int64_t units_bytes(int64_t rows, int64_t k) {
    return Few::units_bytes(rows, round_up(k, kSegment));
  }
  static int64_t tile_bytes(int64_t rows, int64_t k) {
    return units_bytes(rows, k) - Few::units_bytes(rows, k) + Few::tile_bytes(rows, k);
  }

  static void pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                        int64_t k_padded, uint8_t* out) {
    if (!on_tiles(tile_rows)) return Few::pack_tile(x, row0, rows, tile_rows, k_padded, out);
    const auto place = [&](int64_t r, int64_t k) -> Planes& {
      return *reinterpret_cast<Planes*>(out + (k * rows + r * kSegment) * kPlanes);
    };
    const Tile tile = tile_of(out, tile_rows, k_padded);
    Few::quantise(x, row0, rows, tile_rows, k_padded, tile, place, [](int64_t) {});
  }

  static void begin(int64_t tile_rows, Format format) {
    if (on_tiles(tile_rows)) configure_tiles(tile_rows * kPlanes, Grouping(format).group);
  }
  static void end() { _tile_release(); }

  static void multiply(const Block& block) {
    if (!on_tiles(block.rows / kPlanes)) return Few::multiply(block);
    const GroupedStrip layout(block.args->weight->format, block.args->weight->k);
    with_codes(layout.grouping.table,
               [&](auto tag) { multiply_codes<typename decltype(tag)::Codes>(block, layout); });
  }

 private:
  using Planes = typename Few::Planes;
  using Tile = typename Few::Tile;

  static bool on_tiles(int64_t rows) { return rows >= kFewestRowsOnTiles; }

  static Tile tile_of(uint8_t* data, int64_t rows, int64_t k) {
    return Tile(data, rows, k, units_bytes(rows, k));
  }

  // A chunk of a strip with all tiles, then the next chunk: its codes are expanded and its numbers
  // widened once for all rows.
  template <class Codes>
  static void multiply_codes(const Block& block, const GroupedStrip& layout) {
    alignas(64) uint8_t expanded[kChunkDepth * kStripColumns];
    WideNumbers numbers;
    const Table& table = kTables[layout.grouping.table];
    const Codes codes(table);
    const uint8_t* end = block.weight + (block.strips - 1) * block.strip_bytes + layout.bytes;
    for (int64_t s = 0; s < block.strips; ++s) {
      const uint8_t* strip = block.weight + s * block.strip_bytes;
      for (int64_t g = 0; g < layout.groups; g += layout.chunk_groups) {
        const int64_t count = std::min(layout.chunk_groups, layout.groups - g);
        const uint8_t* chunk = strip + layout.chunk_of(g);
        const bool is_last = chunk + layout.codes_at + kChunkAhead >= end;
        const int64_t ahead = kChunkAhead + (is_last ? block.next - end : 0);
        widen(layout, strip, g, count, numbers);
        const int64_t steps = count * layout.grouping.group / Codes::kStep.depth;
        expand_codes(codes, table.zero, chunk + layout.codes_at, steps, expanded);
        TileArgs args{};
        args.weights = expanded;
        args.zeros = layout.grouping.zeros ? chunk + layout.zeros_at : nullptr;
        args.scales = numbers.scales;
        args.minima = layout.grouping.minima ? numbers.minima : nullptr;
        args.layout = &layout;
        args.first_group = g;
        args.groups = count;
        args.ahead = chunk + ahead;
        args.ahead_bytes = round_up(ceil_div(layout.chunk_bytes, block.tiles * count), 64);
        for (int64_t tile = 0; tile < block.tiles; ++tile) {
          multiply_tile(block, s, tile, args);
          args.ahead += args.ahead_bytes * count;
        }
      }
    }
  }

  static void multiply_tile(const Block& block, int64_t s, int64_t tile, TileArgs& args) {
    uint8_t* data = const_cast<uint8_t*>(block.x) + tile * block.tile_bytes;
    const Tile x = tile_of(data, block.rows / kPlanes, block.k);
    const int64_t rows = block.rows_of(tile) / kPlanes;
    args.x = data;
    args.lines = block.rows_of(tile);
    args.totals = x.totals;
    args.x_rows = block.rows / kPlanes;
    args.sums = block.sums_of(s, tile);
    if (args.first_group == 0) std::fill_n(args.sums, rows * kStripColumns, 0.0f);
    dispatch(rows, args, std::make_index_sequence<kMaxTileRows>{});
    if (args.first_group + args.groups == args.layout->groups) Few::finish(block, s, tile, x);
  }

  template <size_t... kRows>
  static void dispatch(int64_t rows, const TileArgs& args, std::index_sequence<kRows...>) {
    using Function = void (*)(const TileArgs&);
    static constexpr Function kTable[] = {groups_on_tiles<kPlanes, static_cast<int>(kRows) + 1>...};
    kTable[rows - 1](args);
  }
};

}  // namespace quire::gemm

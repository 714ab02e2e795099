// Low-rank changes in bfloat16 on AMX tiles: A x, and B h on the sums of a product.
//
// Numbers of h are multiplied 32 at a time. Those of a part of an adapter begin at a multiple of
// 32, and zeros follow them. So a tile of B may end with lines of the next half strip, and a tile
// of h may have rows of other adapters as zeros: neither changes a sum. Adapters with numbers that
// are not finite are refused before they are loaded.
//
// Tiles are configured as for a product in bfloat16 (AmxFamily::begin).
#pragma once

#include "linear/amx/amx_steps.h"
#include "linear/amx/pack_line.h"
#include "linear/linear.h"

namespace quire::gemm {

constexpr int64_t kTileBytes = 1024;  // of a tile register

// Some rows of x with 16 or 32 lines of A.
struct Shrinking {
  const Rows* x;
  const int32_t* rows;  // [count]: which of x
  int64_t count;        // kShrunkRows at most
  const uint8_t* a;     // of each 16 lines, for every 32 numbers of K [pairs][lines][2]
  int64_t a_bytes;      // to the next 16 lines
  float* sums;          // [count][32]
};

template <int kTiles, int kHalves>
QUIRE_INLINE void shrink_step(const uint8_t* x, const uint8_t* a, int64_t a_bytes) {
  _tile_loadd(4, x, 64);
  _tile_loadd(6, a, 64);
  multiply_tiles<false, 0, 4, 6>();
  if constexpr (kHalves == 2) {
    _tile_loadd(7, a + a_bytes, 64);
    multiply_tiles<false, 1, 4, 7>();
  }
  if constexpr (kTiles == 2) {
    _tile_loadd(5, x + kTileBytes, 64);
    multiply_tiles<false, 2, 5, 6>();
    if constexpr (kHalves == 2) multiply_tiles<false, 3, 5, 7>();
  }
}

// Each sum is in the order of K.
template <int kTiles, int kHalves>
void shrink_as(const Shrinking& work) {
  constexpr int64_t kSteps = 8;  // that are packed before they are multiplied
  constexpr int64_t kAheadBytes = 4 * kTileBytes;
  alignas(64) uint8_t packed[kSteps][kTiles][kTileBytes];
  const int64_t steps = ceil_div(work.x->k, 32);
  std::memset(packed, 0, sizeof packed);
  zero_sums<2>();
  for (int64_t first = 0; first < steps; first += kSteps) {
    const int64_t some = std::min(kSteps, steps - first);
    for (int64_t r = 0; r < work.count; ++r) {
      const void* row = work.x->row(work.rows[r]);
      for (int64_t s = 0; s < some; ++s) {
        pack_line(*work.x, row, (first + s) * 32, packed[s][r / 16] + r % 16 * 64);
      }
    }
    for (int64_t s = 0; s < some; ++s) {
      const uint8_t* a = work.a + (first + s) * kTileBytes;
      for (int h = 0; h < kHalves; ++h) prefetch_lines<16>(a + h * work.a_bytes + kAheadBytes);
      shrink_step<kTiles, kHalves>(packed[s][0], a, work.a_bytes);
    }
  }
  alignas(64) float sums[2 * 16 * kStripColumns];
  store_sums<2>(sums, sums + 16 * kStripColumns);
  std::memcpy(work.sums, sums, work.count * kStripColumns * sizeof(float));
}

// Sums of 16 lines where `halves` is 1: the others are zeros.
inline void shrink(const Shrinking& work, int64_t halves) {
  if (work.count > 16) return halves == 2 ? shrink_as<2, 2>(work) : shrink_as<2, 1>(work);
  halves == 2 ? shrink_as<1, 2>(work) : shrink_as<1, 1>(work);
}

// Adds one half strip of B h to sums: tile kSum, with h in tile kX and B in tile kWeight.
template <int kSum, int kX, int kWeight>
QUIRE_INLINE void multiply_half(const LowRank& by, const LowRank::Half& half, int64_t number) {
  const auto* lines = static_cast<const uint16_t*>(by.b) + half.b + number * kHalfStrip;
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(lines), "r"(int64_t{64}), "i"(kWeight)
               : "memory");
  multiply_tiles<false, kSum, kX, kWeight>();
}

template <int kX>
QUIRE_INLINE void load_hidden(const TileChange& change, int64_t number) {
  const uint16_t* hidden = change.hidden + number * kTileLinesOfA;
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(hidden), "r"(int64_t{64}), "i"(kX)
               : "memory");
}

// Adds B h of one change with a strip to the sums in tiles kSum and kSum + 1.
template <int kSum>
QUIRE_INLINE void add_change(const TileChange& change, int64_t strip) {
  constexpr int kX = 4 + kSum / 2;
  const LowRank& by = *change.by;
  const LowRank::Half* halves = by.halves + 2 * strip;
  const bool alike = halves[0].first == halves[1].first && halves[0].count == halves[1].count;
  for (int64_t j = 0; j < halves[0].count; j += kTileNumbers) {
    load_hidden<kX>(change, halves[0].first + j);
    multiply_half<kSum, kX, 6>(by, halves[0], j);
    if (alike) multiply_half<kSum + 1, kX, 7>(by, halves[1], j);
  }
  for (int64_t j = 0; !alike && j < halves[1].count; j += kTileNumbers) {
    load_hidden<kX>(change, halves[1].first + j);
    multiply_half<kSum + 1, kX, 7>(by, halves[1], j);
  }
}

// Sums of one or two tiles of rows, or of one with two strips, before their first step of K: what
// adapters add to them. Products of tiles with the same sums wait for each other, hence the order.
template <bool kInt8, int kTiles, int kStrips>
QUIRE_INLINE void start_sums(const Block& block, int64_t tile) {
  zero_sums<kTiles * kStrips>();
  const RowChanges* changes = block.args->changes;
  if (kInt8 || changes == nullptr || changes->of_tiles == nullptr) return;
  const int32_t* starts = changes->tile_starts + block.first_row / changes->tile_rows + tile;
  int32_t first = starts[0];
  int32_t second = starts[kTiles - 1];
  while (first < starts[1] || (kTiles == 2 && second < starts[kTiles])) {
    const TileChange* of_tiles = changes->of_tiles;
    if (first < starts[1]) add_change<0>(of_tiles[first], block.first_strip);
    if (kStrips == 2) add_change<2>(of_tiles[first], block.first_strip + 1);
    if (kTiles == 2 && second < starts[kTiles])
      add_change<2>(of_tiles[second++], block.first_strip);
    ++first;
  }
}

// Adds B h to the sums of a tile of rows with a strip, `values`: [rows][32]. A half row that its
// own adapter does not reach stays as it is: +0 would change -0.
inline void change_on_tiles(const RowChanges& changes, int64_t strip, int64_t first, int64_t count,
                            float* values) {
  const int64_t tile = first / changes.tile_rows;
  if (changes.tile_starts[tile] == changes.tile_starts[tile + 1]) return;
  alignas(64) float added[16 * kStripColumns];
  zero_sums<1>();
  for (int32_t i = changes.tile_starts[tile]; i < changes.tile_starts[tile + 1]; ++i) {
    add_change<0>(changes.of_tiles[i], strip);
  }
  store_sums<1>(added, nullptr);
  for (int64_t r = 0; r < count; ++r) {
    const LowRank* by = changes.rows[first + r].by;
    if (by == nullptr || !by->on_tiles) continue;
    for (int64_t half = 0; half < 2; ++half) {
      if (by->halves[2 * strip + half].count == 0) continue;
      float* value = values + r * kStripColumns + half * kHalfStrip;
      store(value, load<F32x16>(value) + load<F32x16>(added + (value - values)));
    }
  }
}

}  // namespace quire::gemm

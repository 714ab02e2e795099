// Grouped products on AMX tiles: the sums of whole numbers of several rows, a group at a time.
//
// Sums of whole numbers have no order, and what follows them is done as in grouped_products.h: the
// bits are those of the vector products, which fewer rows take.
#pragma once

#include "linear/amx/amx_steps.h"
#include "linear/grouped/grouped_products.h"

namespace quire::gemm {

// K of one product of tiles.
constexpr int64_t tile_depth(int64_t group) { return std::min(group, kSegment); }

// Tile registers: sums 0-1 and 2-3, in turn from group to group, x 4-5 likewise, weights 6-7.
inline void configure_tiles(int64_t lines, int64_t group) {
  TileConfig config;
  const int64_t depth = tile_depth(group);
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? depth : 64);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? lines : depth / 4);
  }
  // Not the intrinsic: gcc 12 assumes that it reads eight bytes only.
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// Writes what steps of codes stand for, as signed bytes: [K / 4][32 columns][4].
template <class Codes>
QUIRE_INLINE void expand_codes(const Codes& codes, int32_t zero, const uint8_t* line, int64_t steps,
                               uint8_t* out) {
  constexpr int64_t kStepBytes = Codes::kStep.lines * kLineBytes;
  const CodeBytes zeros = static_cast<uint8_t>(zero) - CodeBytes{};
  for (int64_t i = 0; i < steps; ++i, line += kStepBytes) {
#pragma GCC unroll 8
    for (int q = 0; q < Codes::kQuads; ++q, out += kLineBytes) {
      store(out, codes.quad(line, q) - zeros);
      store(out + 64, codes.quad(line + 64, q) - zeros);
    }
  }
}

// A tile of rows of x with the groups of one chunk of a strip.
struct TileArgs {
  const uint8_t* x;        // the tile: [64 of K][line][64 bytes]
  int64_t lines;           // of it
  const uint32_t* totals;  // as in GroupedArgs
  int64_t x_rows;
  const uint8_t* weights;  // expanded
  const uint8_t* zeros;    // [group][32], or null
  const float* scales;     // [group][32]
  const float* minima;     // [group][32], or null
  const GroupedStrip* layout;
  int64_t first_group;
  int64_t groups;
  const uint8_t* ahead;  // what is prefetched meanwhile
  int64_t ahead_bytes;   // of that, with each group
  float* sums;           // [row][32]; those before the first group are in it
};

// Sums of whole numbers of one group, for every line of a tile of x.
struct alignas(64) GroupSums {
  int32_t lines[16][kStripColumns];
};

template <int kParity, int kHalf>
QUIRE_INLINE void store_half(GroupSums& out) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(out.lines[0] + kHalf * kHalfStrip), "r"(kLineBytes), "i"(2 * kParity + kHalf)
               : "memory");
}

// Multiplies one group: its sums come into the tiles of this parity. kStore: those of the group
// before, which the other tiles have, go to `before`. A store costs least between two products.
template <int kParity, bool kStore>
QUIRE_INLINE void multiply_group(const TileArgs& args, int64_t group, GroupSums& before) {
  constexpr int kSum = 2 * kParity;
  constexpr int kX = 4 + kParity;
  const int64_t size = args.layout->grouping.group;
  const int64_t depth = tile_depth(size);
  const uint8_t* weights = args.weights + (group - args.first_group) * size * kStripColumns;
  fetch_bytes(args.ahead + (group - args.first_group) * args.ahead_bytes, args.ahead_bytes);
  asm volatile("tilezero %%tmm%c0" : : "i"(kSum));
  asm volatile("tilezero %%tmm%c0" : : "i"(kSum + 1));
  const auto step = [&](int64_t k, auto stores) {
    const uint8_t* x = args.x + k / kSegment * kSegment * args.lines + k % kSegment;
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(x), "r"(kSegment), "i"(kX) : "memory");
    _tile_loadd(6, weights, kLineBytes);
    asm volatile("tdpbssd %%tmm6, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kX));
    _tile_loadd(7, weights + 64, kLineBytes);
    if constexpr (stores) store_half<1 - kParity, 0>(before);
    asm volatile("tdpbssd %%tmm7, %%tmm%c1, %%tmm%c0" : : "i"(kSum + 1), "i"(kX));
    if constexpr (stores) store_half<1 - kParity, 1>(before);
    weights += depth * kStripColumns;
  };
  int64_t k = group * size;
  step(k, std::bool_constant<kStore>{});
  for (k += depth; k < (group + 1) * size; k += depth) step(k, std::false_type{});
}

// What belongs to each row of x in one group, besides its products. Read from memory where it is
// used: that takes no registers.
template <int kRows>
struct RowsOfGroup {
  alignas(32) int32_t totals[kMostRowsOfTiles];
  alignas(32) float float_totals[kMostRowsOfTiles];

  QUIRE_INLINE RowsOfGroup(const TileArgs& args, int64_t group) {
    constexpr __mmask8 kMask = (1 << kRows) - 1;
    const Grouping& grouping = args.layout->grouping;
    const int64_t parts = grouping.group / kTotalDepth;
    const uint32_t* before = args.totals + group * parts * args.x_rows;
    const __m256i total =
        _mm256_sub_epi32(_mm256_maskz_loadu_epi32(kMask, before + parts * args.x_rows),
                         _mm256_maskz_loadu_epi32(kMask, before));
    store(totals, total);
    store(float_totals, _mm256_cvtepi32_ps(total));
    asm volatile("" : "+m"(totals), "+m"(float_totals));
  }
};

// Adds a group's sums of whole numbers to those of floats, as end_group does.
template <int kPlanes, bool kZeros, int kRows>
QUIRE_INLINE void add_group_sums(const TileArgs& args, int64_t group, const GroupSums& from,
                                 Vector (&sums)[kRows][2]) {
  const RowsOfGroup<kRows> rows(args, group);
  const int64_t at = (group - args.first_group) * kStripColumns;
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const auto scale = load<Vector>(args.scales + at + v * kVectorLanes);
    IntVector zeros{};
    if constexpr (kZeros) zeros = (IntVector)widen_codes(args.zeros + at + v * kVectorLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      auto dot = load<IntVector>(from.lines[r * kPlanes] + v * kVectorLanes);
      if constexpr (kPlanes == 2) {
        dot = (dot << 8) + load<IntVector>(from.lines[r * kPlanes + 1] + v * kVectorLanes);
      }
      if constexpr (kZeros) dot -= zeros * rows.totals[r];
      sums[r][v] = fused(sums[r][v], __builtin_convertvector(dot, Vector), scale);
    }
  }
  if (args.minima == nullptr) return;
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const auto minimum = load<Vector>(args.minima + at + v * kVectorLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sums[r][v] = fused(sums[r][v], rows.float_totals[r] - Vector{}, minimum);
    }
  }
}

// Adds the products of all groups to the sums. Tiles work on a group while vectors add the sums of
// the one before.
template <int kPlanes, int kRows, bool kZeros>
QUIRE_INLINE void add_groups(const TileArgs& args) {
  GroupSums found[2];
  Vector sums[kRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = load<Vector>(args.sums + r * kStripColumns);
    sums[r][1] = load<Vector>(args.sums + r * kStripColumns + kVectorLanes);
  }
  const int64_t end = args.first_group + args.groups;
  // Multiplies the group after this one, if there is one, and stores the sums of this one.
  const auto go_on = [&](int64_t group, auto parity) {
    if (group + 1 < end) return multiply_group<1 - parity, true>(args, group + 1, found[parity]);
    store_half<parity, 0>(found[parity]);
    store_half<parity, 1>(found[parity]);
  };
  multiply_group<0, false>(args, args.first_group, found[1]);
  for (int64_t group = args.first_group; group < end; group += 2) {
    go_on(group, std::integral_constant<int, 0>{});
    add_group_sums<kPlanes, kZeros>(args, group, found[0], sums);
    if (group + 1 == end) break;
    go_on(group + 1, std::integral_constant<int, 1>{});
    add_group_sums<kPlanes, kZeros>(args, group + 1, found[1], sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    store(args.sums + r * kStripColumns, sums[r][0]);
    store(args.sums + r * kStripColumns + kVectorLanes, sums[r][1]);
  }
}

template <int kPlanes, int kRows>
void groups_on_tiles(const TileArgs& args) {
  if (args.zeros != nullptr) return add_groups<kPlanes, kRows, true>(args);
  add_groups<kPlanes, kRows, false>(args);
}

}  // namespace quire::gemm

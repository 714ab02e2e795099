// Grouped weights with several tiles of rows: a chunk of codes is expanded into the first-level
// cache and then multiplied with all tiles. This is for AVX2 without an instruction for dot
// products of bytes.
//
// Codes lie there as [4 of K][kUnits][32 columns][4 bytes]. Words of 16 bits have their zeros taken
// off; small numbers are bytes without a sign, and zero times the sum of x is taken off the sums of
// a group.
#pragma once

#include <utility>

#include "linear/grouped/grouped_products.h"
#include "linear/vector_family.h"

namespace quire::gemm {

#if defined(QUIRE_PAIRS_OF_BYTES)

constexpr bool kExpandsGroups = true;

// With fewer tiles it is faster to unpack codes for each of them. Those of 8 bits need little
// unpacking.
template <class Codes>
constexpr int64_t kTilesOfExpanded = Codes::kQuads == 1 ? 4 : 2;

// Whether pairs of products are summed in 16 bits.
template <class Product>
constexpr bool kSumsPairs = Product::kUnits == 1;

constexpr int64_t kChunkQuads = kChunkDepth / 4;
constexpr int64_t kChunkGroups = kChunkDepth / 16;  // at most

struct ExpandedChunk {
  alignas(64) uint8_t codes[kChunkQuads * 2 * kLineBytes];
  alignas(64) IntVector zeros[kChunkGroups][kStripColumns / kVectorLanes];
};

// Expands the first `groups` groups of a chunk.
template <class Product, class Codes>
void expand_chunk(const GroupedStrip& layout, const uint8_t* chunk, int64_t groups,
                  ExpandedChunk& out) {
  const Grouping& grouping = layout.grouping;
  const Table& table = kTables[grouping.table];
  const Codes codes(table);
  const int64_t steps = grouping.group / Codes::kStep.depth;
  for (int64_t c = 0; c < kStripColumns; c += kVectorLanes) {
    const uint8_t* line = chunk + layout.codes_at + c * 4;
    uint8_t* to = out.codes + c * 4;
    for (int64_t g = 0; g < groups; ++g) {
      auto zeros = static_cast<uint32_t>(table.zero - Codes::kLess) - CodeWords{};
      if (grouping.zeros) {
        zeros += widen_codes(chunk + layout.zeros_at + g * kStripColumns + c);
      }
      zeros *= 0x00010001u;
      out.zeros[g][c / kVectorLanes] = (IntVector)zeros;
      for (int64_t step = 0; step < steps; ++step, line += Codes::kStep.lines * kLineBytes) {
#pragma GCC unroll 8
        for (int q = 0; q < Codes::kQuads; ++q) {
          const CodeBytes quad = codes.quad(line, q);
#pragma GCC unroll 2
          for (int u = 0; u < Product::kUnits; ++u, to += kLineBytes) {
            auto weight = (__m256i)Product::weight(quad, u);
            if constexpr (!kSumsPairs<Product>) weight = _mm256_sub_epi16(weight, (__m256i)zeros);
            store(to, weight);
          }
        }
      }
    }
  }
}

// Of each group and row of a tile, [group][row].
struct GroupsOfX {
  int32_t totals[kChunkGroups * kMostRowsOfTiles];
  float scaled_totals[kChunkGroups * kMostRowsOfTiles];  // times x's scale
  float scales[kChunkGroups * kMostRowsOfTiles];         // where blocks of x have them
};

struct ExpandedArgs {
  const uint32_t* x;  // [step of 4 of K][kUnits][row]
  const GroupsOfX* groups_of_x;
  const ExpandedChunk* chunk;
  const float* scales;  // [group][32]
  const float* minima;  // [group][32], where there are any
  int64_t groups;
  int64_t quads;  // of a group
  bool has_zeros;
  float* sums;  // [row][32]; those before the first group are in it
};

// Adds kQuads times 4 of K to the sums, or begins these.
template <class Product, int kRows, int kQuads>
QUIRE_INLINE void add_expanded(const uint32_t* x, const uint8_t* codes, bool is_first,
                               IntVector (&dots)[kRows][2]) {
  constexpr int kLines = kQuads * Product::kUnits;
  if constexpr (kSumsPairs<Product>) {
    IntVector small[kRows][2];
    add_lines<true, kLines>(x, codes, true, small);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const auto found = Product::widened(small[r][v]);
        dots[r][v] = is_first ? found : dots[r][v] + found;
      }
    }
  } else {
    add_lines<false, kLines>(x, codes, is_first, dots);
  }
}

// Takes zeros off the sums of a group.
template <int kRows>
QUIRE_INLINE void take_zeros(const int32_t* totals, const IntVector* zeros,
                             IntVector (&dots)[kRows][2]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const IntVector total = (-totals[r] & 0xffff) - IntVector{};
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) dots[r][v] = dot_words(dots[r][v], total, zeros[v]);
  }
}

// kTogether: how many times 4 of K are added at once; a group has a multiple of them, or one of
// them (kOnce). Sums of whole numbers are in registers, those of floats in memory.
template <class Product, int kRows, bool kBlocks, bool kMinima, int kTogether, bool kOnce>
void expanded_rows(const ExpandedArgs& args) {
  constexpr int64_t kUnits = kTogether * Product::kUnits;
  const int64_t quads = args.quads;
  const bool has_zeros = args.has_zeros;
  for (int64_t c = 0; c < kStripColumns; c += 2 * kVectorLanes) {
    const uint32_t* x = args.x;
    const uint8_t* codes = args.chunk->codes + c * 4;
    const IntVector* zeros = args.chunk->zeros[0] + c / kVectorLanes;
    const float* scales = args.scales + c;
    const float* minima = args.minima + c;
    const int32_t* totals = args.groups_of_x->totals;
    const float* scaled_totals = args.groups_of_x->scaled_totals;
    const float* x_scales = args.groups_of_x->scales;
    float* sums = args.sums + c;
    for (int64_t g = args.groups; g > 0; --g) {
      IntVector dots[kRows][2];
      add_expanded<Product, kRows, kTogether>(x, codes, true, dots);
      x += kUnits * kRows;
      codes += kUnits * kLineBytes;
      if constexpr (!kOnce) {
        for (int64_t q = kTogether; q < quads; q += kTogether) {
          add_expanded<Product, kRows, kTogether>(x, codes, false, dots);
          x += kUnits * kRows;
          codes += kUnits * kLineBytes;
        }
      }
      if (kSumsPairs<Product> && has_zeros) take_zeros<kRows>(totals, zeros, dots);
      asm("" : "+r"(sums));  // else gcc keeps copies of the sums on the stack
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const auto scale = load<Vector>(scales + v * kVectorLanes);
        Vector minimum;
        if constexpr (kMinima) minimum = load<Vector>(minima + v * kVectorLanes);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          float* at = sums + r * kStripColumns + v * kVectorLanes;
          const Vector by = kBlocks ? scale * x_scales[r] : scale;
          auto sum = fused(load<Vector>(at), __builtin_convertvector(dots[r][v], Vector), by);
          if constexpr (kMinima) sum = fused(sum, scaled_totals[r] - Vector{}, minimum);
          store(at, sum);
        }
      }
      scales += kStripColumns;
      minima += kStripColumns;
      zeros += kStripColumns / kVectorLanes;
      totals += kRows;
      scaled_totals += kRows;
      x_scales += kRows;
    }
  }
}

template <class Product, bool kBlocks, bool kMinima, int kTogether, bool kOnce, size_t... kRows>
void dispatch_expanded(int64_t rows, const ExpandedArgs& args, std::index_sequence<kRows...>) {
  using Function = void (*)(const ExpandedArgs&);
  static constexpr Function kTable[] = {
      expanded_rows<Product, static_cast<int>(kRows) + 1, kBlocks, kMinima, kTogether, kOnce>...};
  kTable[rows - 1](args);
}

template <class Product, class Codes, bool kBlocks, bool kMinima>
void multiply_expanded_rows(int64_t rows, const ExpandedArgs& args) {
  using Rows = std::make_index_sequence<kMaxVectorRows>;
  if constexpr (kSumsPairs<Product>) {
    constexpr int kMost = Product::quads_in_sum(Codes::kLargest);
    if constexpr (kMost >= 8) {
      if (args.quads == 8) {
        return dispatch_expanded<Product, kBlocks, kMinima, 8, true>(rows, args, Rows{});
      }
    }
    dispatch_expanded<Product, kBlocks, kMinima, kMost >= 4 ? 4 : 2, false>(rows, args, Rows{});
  } else {
    dispatch_expanded<Product, kBlocks, kMinima, 1, false>(rows, args, Rows{});
  }
}

template <class Product, class Codes, bool kBlocks>
void multiply_expanded_rows(int64_t rows, bool has_minima, const ExpandedArgs& args) {
  if (has_minima) return multiply_expanded_rows<Product, Codes, kBlocks, true>(rows, args);
  multiply_expanded_rows<Product, Codes, kBlocks, false>(rows, args);
}

#else

constexpr bool kExpandsGroups = false;

#endif

}  // namespace quire::gemm

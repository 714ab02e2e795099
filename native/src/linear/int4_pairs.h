// 4-bit weights where pairs of products are summed in 16 bits: AVX2 without an instruction for dot
// products of bytes.
//
// A weight is u * step - offset. u is at most 15, so that the products of a group with bytes of x,
// in pairs, fit in 16 bits; the instruction that widens their sums multiplies them by the step.
// That takes about half the multiplications of bytes widened to 16 bits, and the sums are the same
// integers. Offsets are multiplied with the sums of x over groups.
#pragma once

#include <algorithm>
#include <utility>

#include "linear/vector_family.h"

#if defined(QUIRE_PAIRS_OF_BYTES)

namespace quire::gemm {

template <int kPlanes>
struct Int4PairProduct : QuantisedX<kPlanes> {
  static constexpr bool kUnsignedX = false;
  static constexpr int kUnits = 1;
  static constexpr int kRowsOfTwoVectors = 2;
  static constexpr bool kPrefetchesForOne = true;
  static_assert(kInt4Group / 2 * 15 * 128 <= INT16_MAX);

  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return Pairs<true>::multiply_add(sum, x, w);
  }
  // Sums of 16 bits times the step, which is in both halves of a word.
  static QUIRE_INLINE IntVector add_scaled(IntVector sum, IntVector dot, IntVector step) {
    return sum + (IntVector)_mm256_madd_epi16((__m256i)dot, (__m256i)step);
  }
  static QUIRE_INLINE IntVector step_of(CodeWords steps) {
    return (IntVector)(steps * 0x00010001u);
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kSegment]) {
    quantise_segment<kPlanes>(x, row, k, count, inverse, reinterpret_cast<int8_t*>(out),
                              sizeof *out);
  }
};

// A slab as bytes: for each group [8 quads of K][32 columns][4] numbers, then the steps,
// [32 columns][2] words of 16 bits; after them the offsets of both groups, [32 columns][2] words.
constexpr int64_t kGroupQuads = kInt4Group / 4;
constexpr int64_t kNumberBytes = (kGroupQuads + 1) * kSlabColumns * 4;
constexpr int64_t kPairSlabBytes = kSlabGroups * kNumberBytes + kSlabColumns * 4;

template <class Product>
void expand_numbers(const uint8_t* slab, uint8_t* out) {
  for (int64_t c = 0; c < kSlabColumns; c += kPartLanes) {
    store(out + kSlabGroups * kNumberBytes + c * 4,
          widen_codes(slab + c) | widen_codes(slab + kSlabColumns + c) << 16);
  }
  for (int64_t group = 0; group < kSlabGroups; ++group, out += kNumberBytes) {
    const uint8_t* lines = slab + kCodeBytes + group * kGroupLines * kInt4LineBytes;
    for (int64_t c = 0; c < kSlabColumns; c += kPartLanes) {
      const CodeWords steps = steps_of(widen_codes(slab + kStepsAt + c), group);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kGroupLines; ++i) {
        const auto line = load<CodeWords>(lines + i * kInt4LineBytes + c * 4);
        uint8_t* to = out + 2 * i * kInt4LineBytes + c * 4;
        store(to, line & 0x0f0f0f0fu);
        store(to + kInt4LineBytes, (line >> 4) & 0x0f0f0f0fu);
      }
      store(out + kGroupQuads * kInt4LineBytes + c * 4, Product::step_of(steps));
    }
  }
}

struct PairArgs {
  const uint32_t* x;       // [4 of K][rows]
  const uint32_t* totals;  // of x, [slab][rows]
  const uint8_t* slabs;    // of one strip, as bytes
  int64_t count;           // of slabs
  const uint8_t* ahead;    // prefetched, ahead_bytes for each group
  int64_t ahead_bytes;
  float* sums;  // [row][32]
  bool resume;  // K was begun before: add to the sums
};

// What the offsets of all slabs add to the sums of two vectors of columns, or begin these with.
template <class Product, int kRows, class Place>
QUIRE_INLINE void add_offsets(const PairArgs& args, const uint8_t* slabs, const Place& place) {
  IntVector sums[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) {
      sums[r][v] = args.resume ? load<IntVector>(place(r, v)) : IntVector{};
    }
  }
  const uint8_t* offsets = slabs + kSlabGroups * kNumberBytes;
  for (int64_t i = 0; i < args.count; ++i, offsets += kPairSlabBytes) {
    const IntVector w[] = {load<IntVector>(offsets), load<IntVector>(offsets + sizeof(IntVector))};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto total = Product::broadcast(args.totals + i * kRows + r);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[r][v] = Pairs<false>::multiply_add(sums[r][v], total, w[v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) store(place(r, v), sums[r][v]);
  }
}

// Sums of 16 bits are in registers, those of 32 bits in memory.
template <class Product, int kRows>
void pair_rows(const PairArgs& args) {
  const uint8_t* ahead = args.ahead;
  const int64_t ahead_bytes = args.ahead_bytes;
  for (int64_t c = 0; c < kStripColumns; c += 2 * kVectorLanes) {
    float* sums = args.sums + c;
    const auto place = [&](int r, int v) { return sums + r * kStripColumns + v * kVectorLanes; };
    const uint8_t* quads = args.slabs + c * 4;
    add_offsets<Product, kRows>(args, quads, place);
    const uint32_t* x = args.x;
    for (int64_t g = 0; g < args.count * kSlabGroups; ++g, x += kGroupQuads * kRows) {
      for (int64_t at = 0; at < ahead_bytes; at += 2 * 64) __builtin_prefetch(ahead + at);
      ahead += ahead_bytes;
      IntVector dots[kRows][2];
      add_lines<true, kGroupQuads>(x, quads, true, dots);
      const uint8_t* steps = quads + kGroupQuads * kInt4LineBytes;
      asm("" : "+r"(sums));  // else gcc keeps copies of the sums on the stack
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const auto step = load<IntVector>(steps + v * sizeof(IntVector));
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          store(place(r, v), Product::add_scaled(load<IntVector>(place(r, v)), dots[r][v], step));
        }
      }
      quads += kNumberBytes + (g % kSlabGroups) * (kPairSlabBytes - kSlabGroups * kNumberBytes);
    }
  }
}

template <int kPlanes_>
struct Int4PairFamily : VectorFamily<Int4PairProduct<kPlanes_>, Int4Weights> {
  using Product = Int4PairProduct<kPlanes_>;
  using Base = VectorFamily<Product, Int4Weights>;

  static constexpr int64_t kMaxTileRows = kMaxVectorRows / kPlanes_;

  static void multiply(const Block& block) {
    if (block.tiles > 1 || block.rows > kMostDirect) {
      return multiply_tiles(block, std::make_index_sequence<kMaxVectorRows>{});
    }
    multiply_direct<Product>(block, Base::totals_of(block, 0),
                             std::make_index_sequence<kMostDirect>{});
    Base::finish(block, 0);
  }

 private:
  // Rows of one tile that meet 4-bit weights as they lie.
  static constexpr int64_t kMostDirect = 3;

  // Expands as much of K as fits for all strips, multiplies, and goes on with the next.
  template <size_t... kRows>
  static void multiply_tiles(const Block& block, std::index_sequence<kRows...>) {
    using Function = void (*)(const PairArgs&);
    static constexpr Function kTable[] = {pair_rows<Product, static_cast<int>(kRows) + 1>...};
    alignas(64) uint8_t expanded[kExpandedBytes];
    const int64_t most = kExpandedBytes / block.strips / kPairSlabBytes;
    const int64_t slabs = block.k / kSlabDepth;
    for (int64_t done = 0; done < slabs; done += most) {
      const int64_t count = std::min(most, slabs - done);
      const bool last = done + count == slabs;
      const uint8_t* first = block.weight + done * kSlabBytes;
      for (int64_t i = 0; i < block.strips * count; ++i) {
        const int64_t strip = i / count;
        expand_numbers<Product>(first + strip * block.strip_bytes + i % count * kSlabBytes,
                                expanded + (strip * most + i % count) * kPairSlabBytes);
      }
      const uint8_t* ahead = last ? block.next : first + count * kSlabBytes;
      const int64_t ahead_bytes = ceil_div(most * kSlabBytes, block.tiles);
      for (int64_t tile = 0; tile < block.tiles; ++tile) {
        const int64_t rows = block.rows_of(tile);
        if (done == 0) {
          const int64_t row = tile * block.rows / kPlanes_;
          fetch_destinations(block, row, row + rows / kPlanes_);
        }
        const auto* x = reinterpret_cast<const uint32_t*>(block.x + tile * block.tile_bytes);
        const uint32_t* totals = Base::totals_of(block, tile) + done * rows;
        for (int64_t s = 0; s < block.strips; ++s) {
          kTable[rows - 1]({x + done * kSlabDepth / 4 * rows, totals,
                            expanded + s * most * kPairSlabBytes, count, ahead + tile * ahead_bytes,
                            round_up(ceil_div(ahead_bytes, 2 * count * kSlabGroups), 2 * 64),
                            block.sums_of(s, tile), done > 0});
        }
        if (last) Base::finish(block, tile);
      }
    }
  }
};

}  // namespace quire::gemm

#endif

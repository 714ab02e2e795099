// The two products of attention on one chunk of positions, for each type of cache and ISA tier.
//
// A kernel is a struct of static members:
//   Elem       how it wants q and the probabilities: float, bfloat16 bits, or room for two bytes
//   kRows      query rows it takes at most
//   kRowStep   an item's rows of q are made up to a multiple of this with zeros
//   kScaleUnit what the scales of an int8 or int4 cache are multiplied by; 0: the cache has none
//   kScalesKeys   whether scores() multiplies by those of K
//   kExpands   whether such a cache is expanded first
//   kFetchesInScores, kFetchesInValues   whether these prefetch what is next to K and V
//   kGroupsAhead   how much later what they prefetch is read (ChunkView)
//   put_query(numbers, dim, out)   makes a row of q of float32
//   Weights    what a row of P is written to (PlainWeights)
//   begin_item(rows)    before the products of an item
//   load_keys(chunk)    before the first scores() of groups [g0, g1), if kExpands
//   load_values(chunk)  before the first values() of a chunk, whose V is in the cache by then
//   scores     raw q * K for groups [g0, g1):  out[row][16 * g ..], rows kScoreStride apart
//   values     P * V over groups [g0, g1):     out[row][padded_dim], P's rows kWeightStride apart
//              and zero at masked positions
// Neither product mixes rows, and each element is summed in an order that does not depend on the
// number of rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>

#include "attention/attention.h"
#include "attention/numbers.h"
#include "linear/vector_products.h"
#include "simd/vector.h"

namespace quire {

constexpr int kChunkGroups = kChunk / kGroup;
constexpr int kCachedGroups = 2;  // of K, expanded: they stay in the first-level cache

// Where the groups [first, last) of a chunk lie, and what to prefetch meanwhile: K and then V are
// read group by group, and with each group a few lines are prefetched of the one that comes
// `Kernel::kGroupsAhead` later.
struct ChunkView {
  const uint8_t* keys[kChunkGroups];
  const uint8_t* values[kChunkGroups];
  const uint8_t* next_keys[kChunkGroups];        // of what this worker reads next; null: nothing
  const uint8_t* prefetch_keys[kChunkGroups];    // to be fetched; null: nothing
  const uint8_t* prefetch_values[kChunkGroups];  // likewise
  int first;
  int last;
  int64_t data_bytes;       // of a group
  bool fresh;               // no tile of rows has passed yet
  bool scores_fetch;        // scores() fetches what is next to K
  bool values_fetch;        // values() fetches what is next to V
  const float* key_scales;  // of the chunk's places, in an int8 cache
  uint8_t* tile_space;      // the kernel's own, for the V of a chunk
  uint8_t* key_space;       // of an expanding kernel, for `key_slots` groups of K
  int key_slots;
};

// Two neighbours of the summed dimension, for a register of columns: they meet kUnits broadcasts of
// a row's numbers.
using gemm::fused;
using gemm::kVectorLanes;
using Columns = gemm::Vector;
constexpr int kVectorParts = kLanes / kVectorLanes;

struct F32Pairs {
  using Elem = float;
  using Operand = Columns;
  static constexpr int64_t kPairBytes = 8;  // of one column
  static constexpr int kUnits = 2;
  // `second` is the distance to the second neighbour's columns.
  static QUIRE_INLINE Operand load(const uint8_t* p, int64_t second, int unit) {
    return gemm::load<Columns>(p + unit * second);
  }
  static QUIRE_INLINE Operand broadcast(const Elem* pair, int unit) {
    return pair[unit] - Columns{};
  }
  static QUIRE_INLINE Columns add(Columns sum, Operand x, Operand y) { return fused(sum, x, y); }
};

struct WidenedPairs : F32Pairs {
  static constexpr int64_t kPairBytes = 4;
  static QUIRE_INLINE Operand load(const uint8_t* p, int64_t, int unit) {
    const auto both = gemm::load<gemm::BitVector>(p);
    return (Columns)(unit == 0 ? both << 16 : both & 0xffff0000u);
  }
  static QUIRE_INLINE Columns add(Columns sum, Operand x, Operand y) {
    sum = fused(sum, x, y);
#if defined(__AVX2__)
    // Without it gcc delays the sums of both units, which needs too many registers.
    asm("" : "+x"(sum));
#endif
    return sum;
  }
};

#if defined(QUIRE_DOTS_OF_BF16)
struct Bf16Pairs {
  using Elem = uint16_t;
  using Operand = gemm::BitVector;
  static constexpr int64_t kPairBytes = 4;
  static constexpr int kUnits = 1;
  static QUIRE_INLINE Operand load(const uint8_t* p, int64_t, int) {
    return gemm::load<Operand>(p);
  }
  static QUIRE_INLINE Operand broadcast(const Elem* pair, int) {
    uint32_t both;
    std::memcpy(&both, pair, sizeof both);
    return both - Operand{};
  }
  static QUIRE_INLINE Columns add(Columns sum, Operand x, Operand y) {
    return gemm::dot_bf16(sum, x, y);
  }
};
#endif

#if defined(__AVX512F__)
constexpr int kVectorRows = 12;
constexpr int kVectorRegisters = 24;  // accumulators
#elif defined(__ARM_NEON)
constexpr int kVectorRows = 6;
constexpr int kVectorRegisters = 24;
#else
constexpr int kVectorRows = 6;
constexpr int kVectorRegisters = 12;
#endif

// Quad `index` of a line of an int8 or int4 cache as int8 numbers: 16 words of four.
template <int kBits, class Line>
QUIRE_INLINE Line quad_of(Line line, int index) {
  if constexpr (kBits == 8) return line;
  return ((index == 0 ? line << 4 : line) & 0xf0f0f0f0u) | 0x08080808u;
}

// Quad `index` of the eight of 32 numbers of K in an int4 cache: four lines at `words`, and the
// line of their last bits.
template <class Line>
QUIRE_INLINE Line key_quad_of(const uint8_t* words, const uint8_t* last_bits, int index) {
  const Line word = gemm::load<Line>(words + index / 2 * 64);
  const Line bits = gemm::load<Line>(last_bits);
  return ((index % 2 == 0 ? word << 4 : word) & 0xf0f0f0f0u) |
         ((index < 4 ? bits << index : bits >> 4 << (index - 4)) & 0x08080808u) | 0x04040404u;
}

// What the kernels have in common that take numbers as they are.
template <class Elem_>
struct PlainNumbers {
  using Elem = Elem_;
  using Weights = PlainWeights<Elem>;
  static constexpr int kRowStep = 1;
  static constexpr bool kExpands = false;
  static constexpr float kScaleUnit = 0.0f;
  static constexpr bool kScalesKeys = false;

  static QUIRE_INLINE void put_query(const float* numbers, int64_t dim, Elem* out) {
    for (int64_t d = 0; d < dim; d += kLanes) store_element(out + d, load_f32(numbers + d));
  }
};

// Calls f with the largest of the given counts that make up `all`, and where each begins. A count
// that is given again (`kBefore`) is not compiled again.
template <int kBefore = 0, class F>
QUIRE_INLINE void by_counts(std::integer_sequence<int>, int64_t, F, int64_t) {}
template <int kBefore = 0, int kCount, int... kOthers, class F>
QUIRE_INLINE void by_counts(std::integer_sequence<int, kCount, kOthers...>, int64_t all, F f,
                            int64_t at = 0) {
  if constexpr (kCount != kBefore) {
    for (; all - at >= kCount; at += kCount) {
      f(std::integral_constant<int, kCount>{}, static_cast<int>(at));
    }
  }
  by_counts<kCount>(std::integer_sequence<int, kOthers...>{}, all, f, at);
}

// Calls f with a constant: a look at a variable in the inner loop cost a sixth of a prompt's
// attention on AVX2.
template <class F>
QUIRE_INLINE void by_fetch(bool fetch, F f) {
  if (fetch) return f(std::true_type{});
  f(std::false_type{});
}

// Both products in pieces whose sums fit in registers: `Kernel` has score_groups<R, G>() and
// value_columns<R, C>(), and says how many rows, groups and registers of columns go together.
template <class Kernel, class Elem>
struct InPieces {
  static void scores(const Elem* q, int rows, int64_t dim, const ChunkView& chunk, int g0, int g1,
                     float* out) {
    by_counts(typename Kernel::RowCounts{}, rows, [&](auto count, int r) {
      constexpr int R = decltype(count)::value;
      using GroupCounts = std::integer_sequence<int, Kernel::most_groups(R), 1>;
      by_fetch(chunk.scores_fetch && r == 0, [&](auto fetch) {
        by_counts(GroupCounts{}, g1 - g0, [&](auto groups, int g) {
          Kernel::template score_groups<R, decltype(groups)::value, fetch.value>(
              q + r * dim, dim, chunk, g0 + g, out + r * kScoreStride);
        });
      });
    });
  }

  static void values(const Elem* p, int rows, int64_t dim, const ChunkView& chunk, int g0, int g1,
                     float* out) {
    by_counts(typename Kernel::RowCounts{}, rows, [&](auto count, int r) {
      constexpr int R = decltype(count)::value;
      constexpr int kMost = Kernel::most_columns(R);
      // No fewer registers are left over.
      constexpr int kLeast = std::gcd(kMost, kHeadAlign / kVectorLanes);
      using ColumnCounts = std::integer_sequence<int, kMost, std::max(std::min(kMost, 4), kLeast),
                                                 std::max(std::min(kMost, 2), kLeast), kLeast>;
      by_fetch(chunk.values_fetch && r == 0, [&](auto fetch) {
        by_counts(ColumnCounts{}, dim / kVectorLanes, [&](auto columns, int c) {
          Kernel::template value_columns<R, decltype(columns)::value, fetch.value>(
              p + r * kWeightStride, dim, chunk, g0, g1, int64_t{c} * kVectorLanes, out + r * dim);
        });
      });
    });
  }
};

// Both products with vector instructions. The sums of some rows and registers of columns stay in
// registers, each formed by one chain of additions whatever their numbers.
template <class Pairs>
struct VectorKernel : PlainNumbers<typename Pairs::Elem>,
                      InPieces<VectorKernel<Pairs>, typename Pairs::Elem> {
  using Elem = typename Pairs::Elem;
  static constexpr int kRows = kVectorRows;
  static constexpr bool kFetchesInScores = true;
  static constexpr bool kFetchesInValues = true;
  static constexpr int kGroupsAhead = 2;

  static void begin() {}
  static void end() {}
  static void begin_item(int) {}
  static void load_values(ChunkView&, int64_t) {}

 private:
  friend struct InPieces<VectorKernel<Pairs>, Elem>;
#if defined(__AVX512F__)
  using RowCounts = std::integer_sequence<int, 12, 6, 4, 2, 1>;
#else
  using RowCounts = std::integer_sequence<int, 6, 4, 2, 1>;
#endif
  static constexpr int most_groups(int rows) {
    return kVectorRegisters / (rows * kVectorParts) > 1 ? 2 : 1;
  }
  static constexpr int most_columns(int rows) { return std::clamp(kVectorRegisters / rows, 1, 8); }

  // One pair of the summed dimension for R rows, whose numbers lie `stride` apart, and the C
  // registers of columns at `place(c)`.
  template <int R, int C, class Place>
  static QUIRE_INLINE void add_pair(const Elem* x, int64_t stride, Place place, int64_t second,
                                    Columns (&sums)[R][C]) {
#pragma GCC unroll 2
    for (int u = 0; u < Pairs::kUnits; ++u) {
      typename Pairs::Operand y[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) y[c] = Pairs::load(place(c), second, u);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const auto b = Pairs::broadcast(x + r * stride, u);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[r][c] = Pairs::add(sums[r][c], b, y[c]);
      }
    }
  }

  template <int R, int G, bool kFetch>
  static void score_groups(const Elem* q, int64_t dim, const ChunkView& chunk, int g, float* out) {
    constexpr int64_t kStep = kLanes * Pairs::kPairBytes;
    Columns sums[R][G * kVectorParts] = {};
    int64_t at = 0;
    for (int64_t d = 0; d < dim; d += 2, at += kStep) {
      for (int i = 0; kFetch && i < G; ++i) fetch_lines(chunk.prefetch_keys[g + i] + at, kStep);
      const auto place = [&](int c) {
        return chunk.keys[g + c / kVectorParts] + at + c % kVectorParts * sizeof(Columns);
      };
      add_pair(q + d, dim, place, kLanes * 4, sums);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < G * kVectorParts; ++c) {
        gemm::store(out + r * kScoreStride + g * kGroup + c * kVectorLanes, sums[r][c]);
      }
    }
  }

  template <int R, int C, bool kFetch>
  static void value_columns(const Elem* p, int64_t dim, const ChunkView& chunk, int g0, int g1,
                            int64_t column, float* out) {
    const int64_t pair_bytes = dim * Pairs::kPairBytes;
    // As much as these columns are of V.
    constexpr int64_t kFetchBytes = C * kVectorLanes * Pairs::kPairBytes;
    Columns sums[R][C] = {};
    for (int g = g0; g < g1; ++g) {
      const uint8_t* v = chunk.values[g] + column * 4;
      const Elem* weight = p + g * kGroup;
      const uint8_t* next = kFetch ? chunk.prefetch_values[g] : nullptr;
      if (next) next += column * kGroup / 2 * Pairs::kPairBytes;
      for (int t = 0; t < kGroup; t += 2, v += pair_bytes, weight += 2) {
        if (next) fetch_lines(next + t / 2 * kFetchBytes, kFetchBytes);
        const auto place = [&](int c) { return v + c * sizeof(Columns); };
        add_pair(weight, kWeightStride, place, dim * 4, sums);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        gemm::store(out + r * dim + column + c * kVectorLanes, sums[r][c]);
      }
    }
  }
};

}  // namespace quire

// Attention over an int8 or int4 cache: K and V are bytes in a register, as they lie or unpacked,
// and q and the weights P become integers (`byte_numbers.h`). Sums of these are exact in any order.
//
// With 16 bits, a row has one scale for all its numbers: of q over its head, of P over the chunk.
// They are kept to 2^-16 of the row's largest number, closer than bfloat16 does for whatever
// matters. With 8 bits, which are enough where activations have 8 bits anyway, P has a scale for
// every 64 places, so that many small weights are not lost to a large one far away.
#pragma once

#include "attention/kernels/byte_numbers.h"

namespace quire {

template <class Numbers, int kBits>
struct ByteKernel : InPieces<ByteKernel<Numbers, kBits>, ByteElem> {
  using Elem = ByteElem;
  using Sum = IntSum;
  using Weights = typename Numbers::Weights;
  using WeightFacts = typename Weights::Facts;
  static constexpr int kSums = Numbers::kSums;

  struct QueryFacts {
    float scale;
    int32_t start[kSums];  // what sums begin with
  };

  static constexpr int kRows = kVectorRows;
  static constexpr int kRowStep = 1;
  static constexpr bool kExpands = false;
  static constexpr bool kFetchesInScores = true;
  static constexpr bool kFetchesInValues = true;
  static constexpr int kGroupsAhead = Numbers::kGroupsAhead;
  static constexpr float kScaleUnit = 1.0f;
  static constexpr bool kScalesKeys = true;

  static void begin() {}
  static void end() {}
  static void begin_item(int) {}
  static void load_values(ChunkView&, int64_t) {}

  static void put_query(const float* numbers, int64_t dim, Elem* out) {
    gemm::Extent extent;
    for (int64_t d = 0; d < dim; d += kLanes) extent.add(load_f32(numbers + d));
    const ByteScale scale(extent, Numbers::kBytes == 1 ? 127 : 127 * 256);
    uint8_t* row = room_of(out);
    I32x16 sums[kSums] = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
      Numbers::put_query(row, dim, d, scale.integers(load_f32(numbers + d)), sums);
    }
    QueryFacts facts = {scale.unit, {}};
    for (int i = 0; i < kSums; ++i) {
      const auto sum = static_cast<int32_t>(sum_lanes(gemm::convert<F32x16>(sums[i])));
      facts.start[i] = Numbers::first_sum(sum);
    }
    std::memcpy(row + Numbers::kBytes * dim, &facts, sizeof facts);
  }

 private:
  friend struct InPieces<ByteKernel, ByteElem>;
  static constexpr int kMostRows = kVectorRows / kSums;
#if defined(__AVX512F__)
  using RowCounts = std::integer_sequence<int, kMostRows, 4, 2, 1>;
#else
  using RowCounts = std::integer_sequence<int, kMostRows, std::min(kMostRows, 4), 2, 1>;
#endif
  static constexpr int most_groups(int rows) {
    return std::clamp(kVectorRegisters / (kSums * rows * kVectorParts), 1, 2);
  }
  static constexpr int most_columns(int rows) {
    return std::clamp(kVectorRegisters / (kSums * rows), 1, Numbers::kMostColumns);
  }
  static constexpr int kQuad = 4;           // numbers that one broadcast holds
  static constexpr int kQuads = 8 / kBits;  // in a line of V
  static constexpr int kKeyBytes = kBits == 8 ? kGroup : kGroup * 5 / 8;  // of a number of K
  static constexpr int kGroupQuads = kGroup / kQuad;

  template <class Facts>
  static QUIRE_INLINE Facts facts_of(const Elem* row, int64_t length) {
    Facts facts;
    std::memcpy(&facts, row->room + Numbers::kBytes * length, sizeof facts);
    return facts;
  }

  static QUIRE_INLINE Sum broadcast(const uint8_t* quad) {
    int32_t word;
    std::memcpy(&word, quad, sizeof word);
    return word - Sum{};
  }

  static QUIRE_INLINE Columns together(const Sum (&sums)[kSums]) {
    Columns sum = __builtin_convertvector(sums[0], Columns);
    if constexpr (kSums == 2) sum = sum * 256.0f + __builtin_convertvector(sums[1], Columns);
    return sum;
  }

  template <int R, int G, bool kFetch>
  static QUIRE_INLINE void score_groups(const Elem* q, int64_t dim, const ChunkView& chunk, int g,
                                        float* out) {
    constexpr int C = G * kVectorParts;
    const auto facts = [&](int r) { return facts_of<QueryFacts>(q + r * dim, dim); };
    Sum sums[R][C][kSums];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
        for (int i = 0; i < kSums; ++i) sums[r][c][i] = facts(r).start[i] - Sum{};
      }
    }
    const uint8_t* first = q->room;
    const int64_t row_bytes = dim * sizeof(Elem);
    // `keys_of(c)`: numbers d .. d + 3 of the keys in register c.
    const auto add_quad = [&](int64_t d, auto keys_of) __attribute__((always_inline)) {
      Sum keys[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) keys[c] = (Sum)keys_of(c);
#pragma GCC unroll 2
      for (int unit = 0; unit < Numbers::kUnits; ++unit) {
        Sum operands[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) operands[c] = Numbers::key_operand(keys[c], unit);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Sum b = broadcast(first + r * row_bytes + Numbers::place(unit, d, dim));
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) {
            Sum& sum = sums[r][c][Numbers::sum_of(unit)];
            sum = Numbers::add_key(sum, operands[c], b);
          }
        }
      }
    };
    const auto place_of = [&](int c) {
      return chunk.keys[g + c / kVectorParts] + c % kVectorParts * sizeof(Sum);
    };
    if constexpr (kBits == 8) {
      for (int64_t d = 0, at = 0; d < dim; d += kQuad, at += 64) {
        for (int i = 0; kFetch && i < G; ++i) fetch_lines(chunk.prefetch_keys[g + i] + at, 64);
        add_quad(d, [&](int c) { return gemm::load<gemm::BitVector>(place_of(c) + at); });
      }
    } else {
      // Memory that is fetched a whole chunk ahead is V with 4 bits a number; nearer, mostly K.
      constexpr int64_t kBytes = kGroupsAhead == kChunkGroups ? kGroup / 2 : kKeyBytes;
      for (int64_t d = 0; d < dim; d += kHeadAlign) {
        for (int i = 0; kFetch && i < G; ++i) {
          fetch_lines(chunk.prefetch_keys[g + i] + d * kBytes, kHeadAlign * kBytes);
        }
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; ++quad) {
          add_quad(d + quad * kQuad, [&](int c) {
            const uint8_t* keys = place_of(c);
            return key_quad_of<gemm::BitVector>(keys + d * 8, keys + dim * 8 + d * 2, quad);
          });
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const int place = g * kGroup + c * kVectorLanes;
        const auto of_keys = gemm::load<Columns>(chunk.key_scales + place);
        gemm::store(out + r * kScoreStride + place,
                    together(sums[r][c]) * facts(r).scale * of_keys);
      }
    }
  }

  template <int R, int C, bool kFetch>
  static QUIRE_INLINE void value_columns(const Elem* p, int64_t dim, const ChunkView& chunk, int g0,
                                         int g1, int64_t column, float* out) {
    // Each group of V that is read fetches a part of the memory that comes next, as large as these
    // columns of the group. The parts follow each other in memory: fetching columns was slower.
    constexpr int kPiece = std::gcd(C * kVectorLanes, kHeadAlign);
    int fetch_group = kFetch ? g0 + static_cast<int>((g1 - g0) * column / dim) : 0;
    int64_t fetched = kFetch ? (g1 - g0) * column % dim : 0;
    constexpr int64_t kRowBytes = kWeightStride * sizeof(Elem);
    constexpr int kSpan = Weights::kSpan;
    for (int from = g0, to; from < g1; from = to) {
      const int span = from * kGroup / kSpan;
      to = std::min(g1, (span + 1) * (kSpan / kGroup));
      Sum sums[R][C][kSums] = {};
      for (int g = from; g < to; ++g) {
        const uint8_t* v = chunk.values[g] + column * kQuad;
        if constexpr (kFetch) {
#pragma GCC unroll 8
          for (int i = 0; i < C * kVectorLanes / kPiece; ++i) {
            const uint8_t* next = chunk.prefetch_values[fetch_group];
            if (next) fetch_lines(next + fetched * kKeyBytes, kPiece * kKeyBytes);
            fetched += kPiece;
            if (fetched == dim) fetched = 0, ++fetch_group;
          }
        }
        // Unrolled, because gcc keeps the sums of two loops in memory.
#pragma GCC unroll 4
        for (int quad = 0; quad < kGroupQuads; ++quad) {
          Sum line[C];
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) {
            const uint8_t* words = v + quad / kQuads * dim * kQuad + c * sizeof(Sum);
            line[c] = (Sum)quad_of<kBits>(gemm::load<gemm::BitVector>(words), quad % kQuads);
          }
#pragma GCC unroll 2
          for (int unit = 0; unit < Numbers::kUnits; ++unit) {
            const int64_t place = Numbers::place(unit, g * kGroup + quad * kQuad, kWeightStride);
            Sum operands[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) operands[c] = Numbers::value_operand(line[c], unit);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
              const Sum b = broadcast(p->room + place + r * kRowBytes);
#pragma GCC unroll 8
              for (int c = 0; c < C; ++c) {
                Sum& sum = sums[r][c][Numbers::sum_of(unit)];
                sum = Numbers::add_value(sum, operands[c], b);
              }
            }
          }
        }
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const float unit = facts_of<WeightFacts>(p + r * kWeightStride, kWeightStride).scale[span];
        const Columns scale = unit - Columns{};
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          float* place = out + r * dim + column + c * kVectorLanes;
          const Columns before = from > g0 ? gemm::load<Columns>(place) : Columns{};
          gemm::store(place, fused(before, together(sums[r][c]), scale));
        }
      }
    }
  }
};

}  // namespace quire

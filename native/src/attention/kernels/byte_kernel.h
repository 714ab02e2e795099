// Attention over an int8 cache where the machine multiplies whole bytes: K and V are taken as they
// lie, and q and the weights P become integers. Sums of bytes are integers, exact in any order.
//
// With two planes of bytes, high * 256 + low, these are integers of 16 bits, and a row has one
// scale for all its numbers: of q over its head, of P over the chunk. They are kept to 2^-16 of the
// row's largest number, closer than bfloat16 does for whatever matters. One plane is enough where
// activations have 8 bits anyway. P then has a scale for every 64 places, so that many small
// weights are not lost to a large one far away.
//
// P is unsigned by nature, V and K are signed. Where the instruction multiplies unsigned by signed
// bytes, K is shifted by 128 on its way to the register, and the sums of q * K begin at -128 times
// the sum of q's plane. Where both have a sign, P has one bit less.
#pragma once

#include <type_traits>

#include "attention/kernels/byte_weights.h"
#include "linear/int8_products.h"

#if defined(QUIRE_DOTS_OF_BYTES)

namespace quire {

template <int kPlanes>
struct ByteKernel : InPieces<ByteKernel<kPlanes>, ByteElem> {
  using Elem = ByteElem;
  using Sum = gemm::IntVector;

  using Weights = std::conditional_t<kPlanes == 1, SpanWeights, ChunkWeights>;
  using WeightFacts = typename Weights::Facts;

  struct QueryFacts {
    float scale;
    int32_t start[kPlanes];  // of the sums of each plane
  };

  static constexpr int kRows = kVectorRows;
  static constexpr int kRowStep = 1;
  static constexpr bool kExpands = false;
  static constexpr bool kFetchesInScores = true;
  static constexpr bool kFetchesInValues = true;
  static constexpr int kGroupsAhead = 2;
  static constexpr float kScaleUnit = 1.0f;
  static constexpr bool kScalesKeys = true;

  static void begin() {}
  static void end() {}
  static void begin_item(int) {}
  static void load_values(ChunkView&, int64_t) {}

  static void put_query(const float* numbers, int64_t dim, Elem* out) {
    gemm::Extent extent;
    for (int64_t d = 0; d < dim; d += kLanes) extent.add(load_f32(numbers + d));
    const ByteScale scale(extent, kPlanes == 1 ? 127 : 127 * 256);
    uint8_t* plane = room_of(out);
    I32x16 sums[kPlanes] = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
      const I32x16 whole = scale.integers(load_f32(numbers + d));
      I32x16 high = whole;
      if constexpr (kPlanes == 2) {
        high = (whole + 128) >> 8;
        const I32x16 low = whole - high * 256;
        gemm::store(plane + dim + d, gemm::bytes_of(low));
        sums[1] += low;
      }
      gemm::store(plane + d, gemm::bytes_of(high));
      sums[0] += high;
    }
    QueryFacts facts = {scale.unit, {}};
    for (int p = 0; p < kPlanes; ++p) {
      const auto sum = static_cast<int32_t>(sum_lanes(gemm::convert<F32x16>(sums[p])));
      facts.start[p] = gemm::kSignedDots ? 0 : -128 * sum;
    }
    std::memcpy(plane + kPlanes * dim, &facts, sizeof facts);
  }

 private:
  friend struct InPieces<ByteKernel, ByteElem>;
  static constexpr int kMostRows = kVectorRows / kPlanes;
#if defined(__AVX512F__)
  using RowCounts = std::integer_sequence<int, kMostRows, 4, 2, 1>;
#else
  using RowCounts = std::integer_sequence<int, kMostRows, 2, 1>;
#endif
  static constexpr int most_groups(int rows) {
    return std::clamp(kVectorRegisters / (kPlanes * rows * kVectorParts), 1, 2);
  }
  static constexpr int most_columns(int rows) {
    return std::clamp(kVectorRegisters / (kPlanes * rows), 1, 8);
  }
  static constexpr int kQuad = 4;  // numbers that one broadcast holds
  static constexpr int kGroupQuads = kGroup / kQuad;

  template <class Facts>
  static QUIRE_INLINE Facts facts_of(const Elem* row, int64_t length) {
    Facts facts;
    std::memcpy(&facts, row->room + kPlanes * length, sizeof facts);
    return facts;
  }

  static QUIRE_INLINE Sum broadcast(const uint8_t* quad) {
    int32_t word;
    std::memcpy(&word, quad, sizeof word);
    return word - Sum{};
  }

  static QUIRE_INLINE Columns together(const Sum (&planes)[kPlanes]) {
    Columns sum = __builtin_convertvector(planes[0], Columns);
    if constexpr (kPlanes == 2) sum = sum * 256.0f + __builtin_convertvector(planes[1], Columns);
    return sum;
  }

  template <int R, int G>
  static QUIRE_INLINE void score_groups(const Elem* q, int64_t dim, const ChunkView& chunk, int g,
                                        bool fetch, float* out) {
    constexpr int C = G * kVectorParts;
    const auto shift = gemm::kFlipSigned - Sum{};
    const auto facts = [&](int r) { return facts_of<QueryFacts>(q + r * dim, dim); };
    Sum sums[R][C][kPlanes];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kPlanes; ++plane) {
          sums[r][c][plane] = facts(r).start[plane] - Sum{};
        }
      }
    }
    const uint8_t* first = q->room;
    const int64_t row_bytes = dim * sizeof(Elem);
    for (int64_t d = 0, at = 0; d < dim; d += kQuad, at += 64) {
      for (int i = 0; fetch && i < G; ++i) fetch_lines(chunk.prefetch_keys[g + i] + at, 64);
      Sum keys[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const uint8_t* line = chunk.keys[g + c / kVectorParts] + at;
        keys[c] = gemm::load<Sum>(line + c % kVectorParts * sizeof(Sum)) ^ shift;
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kPlanes; ++plane) {
          const Sum b = broadcast(first + r * row_bytes + plane * dim + d);
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) {
            sums[r][c][plane] = gemm::dot_bytes(sums[r][c][plane], keys[c], b);
          }
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

  template <int R, int C>
  static QUIRE_INLINE void value_columns(const Elem* p, int64_t dim, const ChunkView& chunk,
                                         bool first_rows, int g0, int g1, int64_t column,
                                         float* out) {
    // As much as these columns are of V.
    constexpr int64_t kFetchBytes = C * sizeof(Sum);
    constexpr int64_t kRowBytes = kWeightStride * sizeof(Elem);
    constexpr int kSpan = Weights::kSpan;
    for (int from = g0, to; from < g1; from = to) {
      const int span = from * kGroup / kSpan;
      to = std::min(g1, (span + 1) * (kSpan / kGroup));
      Sum sums[R][C][kPlanes] = {};
      for (int g = from; g < to; ++g) {
        const uint8_t* v = chunk.values[g] + column * kQuad;
        const uint8_t* weight = p->room + g * kGroup;
        const uint8_t* next = chunk.values_fetch && first_rows ? chunk.prefetch_values[g] : nullptr;
        if (next) fetch_lines(next + column * kGroup, kGroupQuads * kFetchBytes);
        // Unrolled, because gcc keeps the sums of two loops in memory.
#pragma GCC unroll 4
        for (int quad = 0; quad < kGroupQuads; ++quad) {
          Sum line[C];
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) {
            line[c] = gemm::load<Sum>(v + quad * dim * kQuad + c * sizeof(Sum));
          }
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int plane = 0; plane < kPlanes; ++plane) {
              const Sum b =
                  broadcast(weight + quad * kQuad + r * kRowBytes + plane * kWeightStride);
#pragma GCC unroll 8
              for (int c = 0; c < C; ++c) {
                sums[r][c][plane] = gemm::dot_bytes(sums[r][c][plane], b, line[c]);
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

#endif

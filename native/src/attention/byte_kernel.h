// Attention over an int8 cache where the machine multiplies whole bytes: K and V are taken as they
// lie, and q and the weights P become integers. Sums of bytes are integers, exact in any order.
//
// With two planes of bytes, high * 256 + low, these are integers of 16 bits, and a row has one
// scale for all its numbers: of q over its head, of P over the chunk. They are kept to 2^-16 of the
// row's largest number, closer than bfloat16 does for whatever matters. One plane is enough where
// activations have 8 bits anyway. P then has a scale for every 64 places, so that many small
// weights are not lost to a large one far away.
//
// The instruction multiplies unsigned by signed bytes. P is unsigned by nature and V signed. For q
// * K it is K that is shifted by 128, on its way to the register, and the sums begin at -128 times
// the sum of q's plane.
#pragma once

#include "attention/kernel.h"
#include "linear/int8_products.h"

namespace quire {

// A row has room for 4 bytes a number: its planes one after the other, then its facts.
struct ByteElem {
  uint8_t room[4];
};

template <int kPlanes>
struct ByteKernel : InPieces<ByteKernel<kPlanes>, ByteElem> {
  using Elem = ByteElem;
  using Product = gemm::Int8Product<1>;
  using Sum = gemm::IntVector;
  static_assert(Product::kUnsignedX);

  // Places of a row of P that have one scale.
  static constexpr int kSpan = kPlanes == 1 ? 64 : kChunk;

  struct QueryFacts {
    float scale;
    int32_t start[kPlanes];  // of the sums of each plane
  };
  struct WeightFacts {
    float scale[kChunk / kSpan];
  };

  static constexpr int kRows = kVectorRows;
  static constexpr int kRowStep = 1;
  static constexpr bool kExpands = false;
  static constexpr bool kFetchesInScores = true;
  static constexpr bool kFetchesInValues = true;
  static constexpr int kGroupsAhead = 2;
  static constexpr float kScaleUnit = 1.0f;

  // Keeps the weights as they are, where the scores were, until it has seen the largest.
  class Weights {
   public:
    using Elem = ByteElem;

    Weights(float* scores, Elem* out) : numbers_(scores), out_(out) {}

    static QUIRE_INLINE F32x16 power(F32x16 x) { return exp2_for_bf16(x); }
    QUIRE_INLINE void put(int i, VectorPair weights) { store_pair(numbers_ + i, weights); }
    void clear(int from, int to) { std::fill(numbers_ + from, numbers_ + to, 0.0f); }

    void finish(int begin, int end) {
      WeightFacts facts = {};
      for (int i = begin / kSpan * kSpan; i < end; i += kSpan) {
        facts.scale[i / kSpan] = quantise(std::max(begin, i), std::min(end, i + kSpan));
      }
      std::memcpy(room_of(out_) + kPlanes * kWeightStride, &facts, sizeof facts);
    }

   private:
    // Writes the weights of a span and returns their scale.
    QUIRE_INLINE float quantise(int begin, int end) {
      F32x16 largest = {};
      F32x16 total = {};
      for (int i = begin; i < end; i += kLanes) {
        const F32x16 v = load_f32(numbers_ + i);
        largest = maximum(v, largest);
        total += v;
      }
      // No weight is below 0, so their sum is no number if and only if one of them is none.
      const Scale scale(max_lanes(largest), sum_lanes(total) * 0.0f, kPlanes == 1 ? 255 : 65535);
      uint8_t* plane = room_of(out_);
      for (int i = begin; i < end; i += kLanes) {
        const I32x16 whole = integers(load_f32(numbers_ + i), scale.inverse);
        if constexpr (kPlanes == 1) {
          put_unsigned(plane + i, whole);
        } else {
          put_unsigned(plane + i, whole >> 8);
          put_unsigned(plane + kWeightStride + i, whole & 255);
        }
      }
      return scale.unit;
    }

    float* const numbers_;
    Elem* const out_;
  };

  static void begin() {}
  static void end() {}
  static void begin_item(int) {}
  static void load_values(ChunkView&, int64_t) {}

  static void put_query(const float* numbers, int64_t dim, Elem* out) {
    gemm::Extent extent;
    for (int64_t d = 0; d < dim; d += kLanes) extent.add(load_f32(numbers + d));
    const Scale scale(extent.top(), extent.bad(), kPlanes == 1 ? 127 : 127 * 256);
    uint8_t* plane = room_of(out);
    I32x16 sums[kPlanes] = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
      const I32x16 whole = integers(load_f32(numbers + d), scale.inverse);
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
      facts.start[p] = -128 * static_cast<int32_t>(sum_lanes(gemm::convert<F32x16>(sums[p])));
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

  // What a row's numbers are multiplied by to become integers up to `limit`, and its reciprocal. If
  // `bad` is NaN, so is the latter and with it all that the row gives; tiny numbers count as zeros.
  struct Scale {
    float inverse;
    float unit;

    Scale(float top, float bad, float limit) {
      constexpr float kSmallest = 1e-30f;
      inverse = top >= kSmallest && bad == 0.0f ? limit / top : 0.0f;
      unit = top / limit + bad;
    }
  };

  static uint8_t* room_of(Elem* row) { return reinterpret_cast<uint8_t*>(row); }

  static QUIRE_INLINE I32x16 integers(F32x16 v, float inverse) {
    return gemm::nearest(v * inverse);
  }

  static QUIRE_INLINE void put_unsigned(uint8_t* out, I32x16 v) {
    gemm::store(out, gemm::unsigned_bytes_of(v));
  }

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
    const auto shift = static_cast<int32_t>(0x80808080u) - Sum{};
    QueryFacts facts[R];
    Sum sums[R][C][kPlanes];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      facts[r] = facts_of<QueryFacts>(q + r * dim, dim);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
#pragma GCC unroll 2
        for (int plane = 0; plane < kPlanes; ++plane) {
          sums[r][c][plane] = facts[r].start[plane] - Sum{};
        }
      }
    }
    const uint8_t* first = q->room;
    const int64_t row_bytes = dim * sizeof(Elem);
    for (int64_t d = 0, at = 0; d < dim; d += kQuad, at += 64) {
      for (int i = 0; fetch && i < G; ++i) fetch_lines(chunk.beside_keys[g + i] + at, 64);
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
            sums[r][c][plane] = Product::multiply_add(sums[r][c][plane], keys[c], b);
          }
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        gemm::store(out + r * kScoreStride + g * kGroup + c * kVectorLanes,
                    together(sums[r][c]) * facts[r].scale);
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
    for (int from = g0, to; from < g1; from = to) {
      const int span = from * kGroup / kSpan;
      to = std::min(g1, (span + 1) * (kSpan / kGroup));
      Sum sums[R][C][kPlanes] = {};
      // One loop: gcc keeps the sums of two in memory.
      for (int quad = from * kGroupQuads; quad < to * kGroupQuads; ++quad) {
        const int g = quad / kGroupQuads;
        const int place = quad % kGroupQuads;
        const uint8_t* v = chunk.values[g] + (place * dim + column) * kQuad;
        const uint8_t* weight = p->room + quad * kQuad;
        if (chunk.values_fetch && first_rows && chunk.beside_values[g]) {
          fetch_lines(chunk.beside_values[g] + column * kGroup + place * kFetchBytes, kFetchBytes);
        }
        Sum line[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) line[c] = gemm::load<Sum>(v + c * sizeof(Sum));
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
          for (int plane = 0; plane < kPlanes; ++plane) {
            const Sum b = broadcast(weight + r * kRowBytes + plane * kWeightStride);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
              sums[r][c][plane] = Product::multiply_add(sums[r][c][plane], b, line[c]);
            }
          }
        }
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const float scale = facts_of<WeightFacts>(p + r * kWeightStride, kWeightStride).scale[span];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          float* place = out + r * dim + column + c * kVectorLanes;
          Columns sum = together(sums[r][c]) * scale;
          if (from > g0) sum += gemm::load<Columns>(place);
          gemm::store(place, sum);
        }
      }
    }
  }
};

}  // namespace quire

// Attention over an int8 cache where the machine multiplies whole bytes: K and V are taken as they
// lie, and q and the weights P become integers of 16 bits, each as two bytes.
//
// A row has one scale for all its numbers: of q over its head, of P over the chunk. Two planes of
// bytes, high * 256 + low, keep either to 2^-16 of the row's largest number, closer than bfloat16
// does for whatever matters. Sums of bytes are integers, exact in any order.
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

struct ByteKernel : InPieces<ByteKernel, ByteElem> {
  using Elem = ByteElem;
  using Product = gemm::Int8Product<1>;
  using Sum = gemm::IntVector;
  static_assert(Product::kUnsignedX);

  struct Facts {
    float scale;
    int32_t start[2];  // of the sums of either plane
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
    Weights(float* scores, Elem* out) : numbers_(scores), out_(out) {}

    static QUIRE_INLINE F32x16 power(F32x16 x) { return exp2_for_bf16(x); }
    QUIRE_INLINE void put(int i, VectorPair weights) {
      store_pair(numbers_ + i, weights);
      largest_ = maximum(weights.first, maximum(weights.second, largest_));
      total_ += weights.first + weights.second;
    }
    void clear(int from, int to) { std::fill(numbers_ + from, numbers_ + to, 0.0f); }

    void finish(int begin, int end) {
      // No weight is below 0, so their sum is no number if and only if one of them is none.
      const Scale scale(max_lanes(largest_), sum_lanes(total_) * 0.0f, 65535);
      uint8_t* high_plane = out_->room;
      uint8_t* low_plane = high_plane + kWeightStride;
      for (int i = begin; i < end; i += kLanes) {
        const I32x16 whole = integers(load_f32(numbers_ + i), scale.inverse);
        put_unsigned(high_plane + i, whole >> 8);
        put_unsigned(low_plane + i, whole & 255);
      }
      const Facts facts = {scale.unit, {}};
      std::memcpy(high_plane + 2 * kWeightStride, &facts, sizeof facts);
    }

   private:
    float* const numbers_;
    Elem* const out_;
    F32x16 largest_ = {};
    F32x16 total_ = {};
  };

  static void begin() {}
  static void end() {}
  static void begin_item(int) {}
  static void load_values(ChunkView&, int64_t) {}

  static void put_query(const float* numbers, int64_t dim, Elem* out) {
    gemm::Extent extent;
    for (int64_t d = 0; d < dim; d += kLanes) extent.add(load_f32(numbers + d));
    const Scale scale(extent.top(), extent.bad(), 127 * 256);
    uint8_t* high_plane = out->room;
    uint8_t* low_plane = high_plane + dim;
    I32x16 sums[2] = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
      const I32x16 whole = integers(load_f32(numbers + d), scale.inverse);
      const I32x16 high = (whole + 128) >> 8;
      const I32x16 low = whole - high * 256;
      gemm::store(high_plane + d, gemm::bytes_of(high));
      gemm::store(low_plane + d, gemm::bytes_of(low));
      sums[0] += high;
      sums[1] += low;
    }
    Facts facts = {scale.unit, {}};
    for (int p = 0; p < 2; ++p) {
      facts.start[p] = -128 * static_cast<int32_t>(sum_lanes(gemm::convert<F32x16>(sums[p])));
    }
    std::memcpy(high_plane + 2 * dim, &facts, sizeof facts);
  }

 private:
  friend struct InPieces<ByteKernel, ByteElem>;
#if defined(__AVX512F__)
  using RowCounts = std::integer_sequence<int, 6, 4, 2, 1>;
#else
  using RowCounts = std::integer_sequence<int, 3, 2, 1>;
#endif
  static constexpr int most_groups(int rows) {
    return std::clamp(kVectorRegisters / (2 * rows * kVectorParts), 1, 2);
  }
  static constexpr int most_columns(int rows) {
    return std::clamp(kVectorRegisters / (2 * rows), 1, 8);
  }
  static constexpr int kQuad = 4;  // numbers that one broadcast holds

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

  static QUIRE_INLINE I32x16 integers(F32x16 v, float inverse) {
    return gemm::convert<I32x16>(gemm::round_whole(v * inverse));
  }

  static QUIRE_INLINE void put_unsigned(uint8_t* out, I32x16 v) {
    gemm::store(out, gemm::bytes_of(v - 128) ^ static_cast<int8_t>(-128));
  }

  static QUIRE_INLINE Facts facts_of(const Elem* row, int64_t length) {
    Facts facts;
    std::memcpy(&facts, row->room + 2 * length, sizeof facts);
    return facts;
  }

  static QUIRE_INLINE Sum broadcast(const uint8_t* quad) {
    int32_t word;
    std::memcpy(&word, quad, sizeof word);
    return word - Sum{};
  }

  static QUIRE_INLINE Columns together(const Sum (&planes)[2], float scale) {
    const auto high = __builtin_convertvector(planes[0], Columns);
    const auto low = __builtin_convertvector(planes[1], Columns);
    return (high * 256.0f + low) * scale;
  }

  template <int R, int G>
  static QUIRE_INLINE void score_groups(const Elem* q, int64_t dim, const ChunkView& chunk, int g,
                                        bool fetch, float* out) {
    constexpr int C = G * kVectorParts;
    const auto shift = static_cast<int32_t>(0x80808080u) - Sum{};
    Facts facts[R];
    Sum sums[R][C][2];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      facts[r] = facts_of(q + r * dim, dim);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        sums[r][c][0] = facts[r].start[0] - Sum{};
        sums[r][c][1] = facts[r].start[1] - Sum{};
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
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int p = 0; p < 2; ++p) {
          const Sum b = broadcast(first + r * row_bytes + p * dim + d);
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) {
            sums[r][c][p] = Product::multiply_add(sums[r][c][p], keys[c], b);
          }
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        gemm::store(out + r * kScoreStride + g * kGroup + c * kVectorLanes,
                    together(sums[r][c], facts[r].scale));
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
    Sum sums[R][C][2] = {};
    for (int g = g0; g < g1; ++g) {
      const uint8_t* v = chunk.values[g] + column * kQuad;
      const uint8_t* weight = p->room + g * kGroup;
      const uint8_t* next = chunk.values_fetch && first_rows ? chunk.beside_values[g] : nullptr;
      if (next) next += column * kGroup;
      for (int t = 0; t < kGroup; t += kQuad, v += dim * kQuad, weight += kQuad) {
        if (next) fetch_lines(next + t / kQuad * kFetchBytes, kFetchBytes);
        Sum line[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) line[c] = gemm::load<Sum>(v + c * sizeof(Sum));
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
          for (int plane = 0; plane < 2; ++plane) {
            const Sum b = broadcast(weight + r * kRowBytes + plane * kWeightStride);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
              sums[r][c][plane] = Product::multiply_add(sums[r][c][plane], b, line[c]);
            }
          }
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const float scale = facts_of(p + r * kWeightStride, kWeightStride).scale;
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        gemm::store(out + r * dim + column + c * kVectorLanes, together(sums[r][c], scale));
      }
    }
  }
};

}  // namespace quire

// How the weights P of a row become integers.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/kernels/byte_scale.h"
#include "attention/kernels/kernel.h"

namespace quire {

// A row has room for 4 bytes a number: its integers, then its facts.
struct ByteElem {
  uint8_t room[4];
};

inline uint8_t* room_of(ByteElem* row) { return reinterpret_cast<uint8_t*>(row); }

// The largest weight of one plane: bytes that are multiplied with a sign have one bit less.
constexpr int32_t kMostOfOnePlane = gemm::kSignedDots ? 127 : 255;

// One plane: a scale for every kSpan places. Those of a chunk are found at once, so that the
// weights stay where the scores were until then.
class SpanWeights {
 public:
  using Elem = ByteElem;
  static constexpr int kSpan = 4 * kLanes;
  static constexpr int kStep = kSpan;
  static constexpr int kSpans = kChunk / kSpan;

  struct Facts {
    float scale[kSpans];
  };

  SpanWeights(float* scores, Elem* out) : numbers_(scores), plane_(room_of(out)) {}

  static QUIRE_INLINE F32x16 power(F32x16 x) { return exp2_for_bf16(x); }

  QUIRE_INLINE void put(int i, const F32x16 (&weights)[kStep / kLanes]) {
    gemm::Extent& extent = extents_[i / kSpan];
#pragma GCC unroll 4
    for (int v = 0; v < kStep / kLanes; ++v) {
      extent.add(weights[v]);
      gemm::store(numbers_ + i + v * kLanes, weights[v]);
    }
  }
  void clear(int from, int to) {
    if (from < to) std::fill(numbers_ + from, numbers_ + to, 0.0f);
  }

  void finish(int /*begin*/, int /*end*/) {
    static_assert(kSpans == 4);
    const ByteScales scales(extents_, kMostOfOnePlane);
    std::memcpy(plane_ + kWeightStride, &scales.unit, sizeof scales.unit);
    std::memcpy(plane_ + kInverses, &scales.inverse, sizeof scales.inverse);
  }

  // Of a span in which nothing is seen whatever was there becomes zeros, as its scale is 0.
  static QUIRE_INLINE void settle(const float* numbers, int begin, int end, Elem* out) {
    uint8_t* plane = room_of(out);
    for (int i = begin / kSpan * kSpan; i < end; i += kSpan) {
      float inverse;
      std::memcpy(&inverse, plane + kInverses + i / kSpan * sizeof inverse, sizeof inverse);
      I32x16 whole[kSpan / kLanes];
#pragma GCC unroll 4
      for (int v = 0; v < kSpan / kLanes; ++v) {
        whole[v] = gemm::nearest(load_f32(numbers + i + v * kLanes) * inverse);
      }
      gemm::store_unsigned_bytes(plane + i, whole);
    }
  }

 private:
  static constexpr int64_t kInverses = kWeightStride + sizeof(Facts);

  float* const numbers_;
  uint8_t* const plane_;
  gemm::Extent extents_[kSpans];
};

// Numbers of 16 bits: one scale, so the weights stay where the scores were until the largest is
// known. `Numbers` puts the integers into a row.
template <class Numbers>
class ChunkWeights {
 public:
  using Elem = ByteElem;
  static constexpr int kSpan = kChunk;
  static constexpr int kStep = kPair;

  struct Facts {
    float scale[1];
  };

  ChunkWeights(float* scores, Elem* out) : numbers_(scores), out_(out) {}

  static QUIRE_INLINE F32x16 power(F32x16 x) { return exp2_for_bf16(x); }
  QUIRE_INLINE void put(int i, const F32x16 (&weights)[kStep / kLanes]) {
    store_vectors(numbers_ + i, weights);
    extent_.add(weights[0]);
    extent_.add(weights[1]);
  }
  void clear(int from, int to) { std::fill(numbers_ + from, numbers_ + to, 0.0f); }

  void finish(int begin, int end) {
    const ByteScale scale(extent_, Numbers::kMostOfWeights);
    uint8_t* row = room_of(out_);
    for (int i = begin; i < end; i += kLanes) {
      Numbers::put_weights(row, i, scale.integers(load_f32(numbers_ + i)));
    }
    std::memcpy(row + Numbers::kBytes * kWeightStride, &scale.unit, sizeof scale.unit);
  }
  static void settle(const float* /*scores*/, int /*begin*/, int /*end*/, Elem* /*out*/) {}

 private:
  float* const numbers_;
  Elem* const out_;
  gemm::Extent extent_;
};

}  // namespace quire

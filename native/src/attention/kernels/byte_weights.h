// How the weights P of a row become bytes, of one plane or of two.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/kernels/byte_scale.h"
#include "attention/kernels/kernel.h"

namespace quire {

// A row has room for 4 bytes a number: its planes one after the other, then its facts.
struct ByteElem {
  uint8_t room[4];
};

inline uint8_t* room_of(ByteElem* row) { return reinterpret_cast<uint8_t*>(row); }

// One plane: a scale for every kSpan places, which are written while they are in registers.
class SpanWeights {
 public:
  using Elem = ByteElem;
  static constexpr int kSpan = 4 * kLanes;
  static constexpr int kStep = kSpan;

  struct Facts {
    float scale[kChunk / kSpan];
  };

  SpanWeights(float* /*scores*/, Elem* out) : plane_(room_of(out)) {}

  static QUIRE_INLINE F32x16 power(F32x16 x) { return exp2_for_bf16(x); }

  QUIRE_INLINE void put(int i, const F32x16 (&weights)[kStep / kLanes]) {
    gemm::Extent extent;
    for (const F32x16& v : weights) extent.add(v);
    const ByteScale scale(extent, 255);
    const I32x16 whole[] = {scale.integers(weights[0]), scale.integers(weights[1]),
                            scale.integers(weights[2]), scale.integers(weights[3])};
    gemm::store_unsigned_bytes(plane_ + i, whole);
    set_scale(i / kSpan, scale.unit);
  }
  void clear(int from, int to) {
    for (int i = from; i < to; i += kPair) {
      std::memset(plane_ + i, 0, kPair);
      set_scale(i / kSpan, 0.0f);
    }
  }
  void finish(int /*begin*/, int /*end*/) {}

 private:
  void set_scale(int span, float scale) {
    std::memcpy(plane_ + kWeightStride + span * sizeof scale, &scale, sizeof scale);
  }

  uint8_t* const plane_;
};

// Two planes: one scale, so the weights stay where the scores were until the largest is known.
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
    const ByteScale scale(extent_, 65535);
    uint8_t* plane = room_of(out_);
    for (int i = begin; i < end; i += kLanes) {
      const I32x16 whole = scale.integers(load_f32(numbers_ + i));
      gemm::store(plane + i, gemm::unsigned_bytes_of(whole >> 8));
      gemm::store(plane + kWeightStride + i, gemm::unsigned_bytes_of(whole & 255));
    }
    std::memcpy(plane + 2 * kWeightStride, &scale.unit, sizeof scale.unit);
  }

 private:
  float* const numbers_;
  Elem* const out_;
  gemm::Extent extent_;
};

}  // namespace quire

// How kernels want q and the weights P of a row written.
#pragma once

#include <algorithm>

#include "ops/vector.h"

namespace quire {

QUIRE_INLINE void store_element(float* out, F32x16 v) { gemm::store(out, v); }
QUIRE_INLINE void store_element(uint16_t* out, F32x16 v) { gemm::store(out, to_bf16(v)); }

// Two neighbouring vectors of places: the tokens of one step of the second product.
constexpr int kPair = 2 * kLanes;

struct VectorPair {
  F32x16 first;
  F32x16 second;
};

QUIRE_INLINE void store_pair(float* out, VectorPair v) {
  gemm::store(out, v.first);
  gemm::store(out + kLanes, v.second);
}
QUIRE_INLINE void store_pair(uint16_t* out, VectorPair v) {
#if defined(__AVX512BF16__)
  gemm::store(out, _mm512_cvtne2ps_pbh((__m512)v.second, (__m512)v.first));
#else
  gemm::store(out, to_bf16(v.first));
  gemm::store(out + kLanes, to_bf16(v.second));
#endif
}

// The weights of a row of a chunk, as they become known: what softmax_row() writes to.
template <class Elem_>
class PlainWeights {
 public:
  using Elem = Elem_;

  // `scores` is the kernel's to use once they have been read.
  PlainWeights(float* /*scores*/, Elem* out) : out_(out) {}

  // 2^x, as exact as is of use.
  static QUIRE_INLINE F32x16 power(F32x16 x) {
    return sizeof(Elem) == sizeof(float) ? exp2_nonpositive(x) : exp2_for_bf16(x);
  }
  // Those of places i .. i + kPair - 1.
  QUIRE_INLINE void put(int i, VectorPair weights) { store_pair(out_ + i, weights); }
  void clear(int from, int to) { std::fill(out_ + from, out_ + to, Elem{0}); }
  // All of [begin, end) are there.
  void finish(int /*begin*/, int /*end*/) {}

 private:
  Elem* const out_;
};

}  // namespace quire

// How kernels want q and the weights P of a row written.
#pragma once

#include <algorithm>

#include "simd/vector.h"

namespace quire {

QUIRE_INLINE void store_element(float* out, F32x16 v) { gemm::store(out, v); }
QUIRE_INLINE void store_element(uint16_t* out, F32x16 v) { gemm::store(out, to_bf16(v)); }

// Two neighbouring vectors of places: the tokens of one step of the second product.
constexpr int kPair = 2 * kLanes;

QUIRE_INLINE void store_vectors(float* out, const F32x16 (&v)[2]) {
  gemm::store(out, v[0]);
  gemm::store(out + kLanes, v[1]);
}
QUIRE_INLINE void store_vectors(uint16_t* out, const F32x16 (&v)[2]) {
#if defined(__AVX512BF16__)
  gemm::store(out, _mm512_cvtne2ps_pbh((__m512)v[1], (__m512)v[0]));
#else
  gemm::store(out, to_bf16(v[0]));
  gemm::store(out + kLanes, to_bf16(v[1]));
#endif
}

// The weights of a row of a chunk, as they become known: what weigh() writes to.
template <class Elem_>
class PlainWeights {
 public:
  using Elem = Elem_;
  static constexpr int kStep = kPair;  // places that are put at a time

  // `scores` is the kernel's to use once they have been read.
  PlainWeights(float* /*scores*/, Elem* out) : out_(out) {}

  // 2^x, as exact as is of use.
  static QUIRE_INLINE F32x16 power(F32x16 x) {
    return sizeof(Elem) == sizeof(float) ? exp2_nonpositive(x) : exp2_for_bf16(x);
  }
  // Those of places i .. i + kStep - 1; i is a multiple of kStep.
  QUIRE_INLINE void put(int i, const F32x16 (&weights)[kStep / kLanes]) {
    store_vectors(out_ + i, weights);
  }
  void clear(int from, int to) { std::fill(out_ + from, out_ + to, Elem{0}); }
  // All of [begin, end) are there.
  void finish(int /*begin*/, int /*end*/) {}
  // What is left to do when those of all rows of a tile are.
  static void settle(const float* /*scores*/, int /*begin*/, int /*end*/, Elem* /*out*/) {}

 private:
  Elem* const out_;
};

}  // namespace quire

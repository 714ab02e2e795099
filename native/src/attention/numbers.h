// How kernels want q and the weights of a row written.
#pragma once

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

}  // namespace quire

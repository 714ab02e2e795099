// B h of a low-rank change, for 16 columns.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace quire::gemm {

template <class T>
QUIRE_INLINE F32x16 expand_as(const LowRank::Half& half, const T* b, const float* hidden) {
  F32x16 sum = {};
  const T* line = b + half.b;
  for (int32_t j = 0; j < half.count; ++j, line += kLanes) {
    F32x16 weight;
    if constexpr (sizeof(T) == 4) {
      weight = load<F32x16>(line);
    } else {
      weight = bf16_to_f32(load<U16x16>(line));
    }
    sum = fma(splat(hidden[half.first + j]), weight, sum);
  }
  return sum;
}

// Summed in the order of h, so that the bits depend on h and B alone.
QUIRE_INLINE F32x16 expand(const LowRank& by, int64_t half, const float* hidden) {
  F32x16 sum = by.dtype == DType::kF32
                   ? expand_as(by.halves[half], static_cast<const float*>(by.b), hidden)
                   : expand_as(by.halves[half], static_cast<const uint16_t*>(by.b), hidden);
  if (by.bias) sum += load<F32x16>(by.bias + half * kLanes);
  return sum;
}

}  // namespace quire::gemm

// B h of a low-rank change, for 16 columns.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace quire::gemm {

// Rows whose sums are computed together: one sum waits for itself at each step.
#if defined(__AVX512F__)
constexpr int kExpandedRows = 8;
#else
constexpr int kExpandedRows = 4;
#endif

template <class T>
QUIRE_INLINE F32x16 load_weights(const T* line) {
  if constexpr (sizeof(T) == 4) {
    return load<F32x16>(line);
  } else {
    return bf16_to_f32(load<U16x16>(line));
  }
}

// Of rows with one change; each sum is in the order of h, so that the bits depend on h and B alone.
template <int kRows, class T>
QUIRE_INLINE void expand_as(const LowRank& by, int64_t half, const float* const* hidden,
                            F32x16* sums) {
  const LowRank::Half& own = by.halves[half];
  const T* line = static_cast<const T*>(by.b) + own.b;
  for (int r = 0; r < kRows; ++r) sums[r] = F32x16{};
  for (int32_t j = own.first; j < own.first + own.count; ++j, line += kLanes) {
    const F32x16 weights = load_weights(line);
    for (int r = 0; r < kRows; ++r) sums[r] = fma(splat(hidden[r][j]), weights, sums[r]);
  }
  if (by.bias == nullptr) return;
  const F32x16 bias = load<F32x16>(by.bias + half * kLanes);
  for (int r = 0; r < kRows; ++r) sums[r] += bias;
}

template <int kRows>
QUIRE_INLINE void expand(const LowRank& by, int64_t half, const float* const* hidden,
                         F32x16* sums) {
  if (by.dtype == DType::kF32) return expand_as<kRows, float>(by, half, hidden, sums);
  expand_as<kRows, uint16_t>(by, half, hidden, sums);
}

}  // namespace quire::gemm

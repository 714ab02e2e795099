// B h of a low-rank change.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace quire::gemm {

// Rows whose sums are computed together, in two half strips each: one sum waits for itself at each
// step.
#if defined(__AVX512F__)
constexpr int kExpandedRows = 4;
#else
constexpr int kExpandedRows = 2;
#endif

// Numbers of B in 64 bytes: those of 16 columns, for one number of h or, where they are bfloat16,
// for two that follow each other: [columns][2].
template <class T>
constexpr int32_t kNumbersPerLine = 4 / sizeof(T);

template <int kRows, int kHalves, class T>
QUIRE_INLINE void expand_as(const LowRank& by, int64_t half, const float* const* hidden,
                            F32x16 (&sums)[kRows][kHalves]) {
  const T* lines[kHalves];
  for (int h = 0; h < kHalves; ++h) lines[h] = static_cast<const T*>(by.b) + by.halves[half + h].b;
  const int32_t first = by.halves[half].first;
  const int32_t count = by.halves[half].count;
  const auto add = [&](int32_t j, const F32x16* weights) {
    for (int r = 0; r < kRows; ++r) {
      const F32x16 number = splat(hidden[r][first + j]);
      for (int h = 0; h < kHalves; ++h) sums[r][h] = fma(number, weights[h], sums[r][h]);
    }
  };
  for (int32_t j = 0; j < count; j += kNumbersPerLine<T>) {
    F32x16 weights[2][kHalves];
    for (int h = 0; h < kHalves; ++h) {
      const auto line = load<U32x16>(lines[h] + j * kLanes);
      weights[0][h] = as<F32x16>(sizeof(T) == 4 ? line : line << 16);
      weights[1][h] = as<F32x16>(line & 0xffff0000u);
    }
    add(j, weights[0]);
    if (sizeof(T) == 2 && j + 1 < count) add(j + 1, weights[1]);
  }
}

// B h + bias of some rows with the same change, in neighbouring half strips from `half` on, which
// the same numbers of h reach. Each sum is in the order of h, so that its bits depend on h and B
// alone.
template <int kRows, int kHalves>
QUIRE_INLINE void expand(const LowRank& by, int64_t half, const float* const* hidden,
                         F32x16 (&sums)[kRows][kHalves]) {
  for (auto& of_row : sums) {
    for (F32x16& sum : of_row) sum = F32x16{};
  }
  if (by.dtype == DType::kF32) {
    expand_as<kRows, kHalves, float>(by, half, hidden, sums);
  } else {
    expand_as<kRows, kHalves, uint16_t>(by, half, hidden, sums);
  }
  if (by.bias == nullptr) return;
  for (auto& of_row : sums) {
    for (int h = 0; h < kHalves; ++h) of_row[h] += load<F32x16>(by.bias + (half + h) * kLanes);
  }
}

}  // namespace quire::gemm

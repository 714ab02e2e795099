// B h of a low-rank change, for 16 columns.
#pragma once

#include "linear/linear.h"
#include "simd/simd.h"

namespace quire::gemm {

// Half strips of rows whose sums are computed together: one sum waits for itself at each step.
#if defined(__AVX512F__)
constexpr int kExpandedHalves = 8;
#else
constexpr int kExpandedHalves = 4;
#endif

// A half strip of a row that is changed.
struct ChangedHalf {
  const LowRank* by;
  int64_t half;
  const float* hidden;  // h of the row
  float* values;        // of the row, before the change

  const LowRank::Half& own() const { return by->halves[half]; }
  bool is_like(const ChangedHalf& other) const { return by == other.by && half == other.half; }
};

template <class T>
QUIRE_INLINE F32x16 load_weights(const T* line) {
  if constexpr (sizeof(T) == 4) {
    return load<F32x16>(line);
  } else {
    return bf16_to_f32(load<U16x16>(line));
  }
}

// Each sum is in the order of h, so that its bits depend on h and B alone. `kAlike`: all halves
// have the same change and columns, and read B once. Otherwise they have as many numbers of h.
template <int kHalves, bool kAlike, class T>
QUIRE_INLINE void expand_as(const ChangedHalf* halves, F32x16* sums) {
  const T* lines[kHalves];
  const float* hidden[kHalves];
  for (int i = 0; i < kHalves; ++i) {
    lines[i] = static_cast<const T*>(halves[i].by->b) + halves[i].own().b;
    hidden[i] = halves[i].hidden + halves[i].own().first;
    sums[i] = F32x16{};
  }
  const int32_t count = halves[0].own().count;
  for (int32_t j = 0; j < count; ++j) {
    const F32x16 first = load_weights(lines[0] + j * kLanes);
    for (int i = 0; i < kHalves; ++i) {
      const F32x16 weights = kAlike || i == 0 ? first : load_weights(lines[i] + j * kLanes);
      sums[i] = fma(splat(hidden[i][j]), weights, sums[i]);
    }
  }
  for (int i = 0; i < kHalves; ++i) {
    if (const float* bias = halves[i].by->bias) {
      sums[i] += load<F32x16>(bias + halves[i].half * kLanes);
    }
  }
}

template <int kHalves, bool kAlike>
QUIRE_INLINE void expand_typed(const ChangedHalf* halves, F32x16* sums) {
  if (halves[0].by->dtype == DType::kF32) return expand_as<kHalves, kAlike, float>(halves, sums);
  expand_as<kHalves, kAlike, uint16_t>(halves, sums);
}

// B h + bias of some halves.
template <int kHalves>
QUIRE_INLINE void expand(const ChangedHalf* halves, F32x16* sums) {
  bool is_alike = true;
  bool is_as_long = true;
  for (int i = 1; i < kHalves; ++i) {
    is_alike &= halves[i].is_like(halves[0]);
    is_as_long &= halves[i].own().count == halves[0].own().count &&
                  halves[i].by->dtype == halves[0].by->dtype;
  }
  if (is_alike) return expand_typed<kHalves, true>(halves, sums);
  if (is_as_long) return expand_typed<kHalves, false>(halves, sums);
  for (int i = 0; i < kHalves; ++i) expand_typed<1, true>(halves + i, sums + i);
}

}  // namespace quire::gemm

// Scales and minima of a strip's groups as float32, and activations with a scale for each block.
#pragma once

#include "linear/grouped/grouped_weights.h"
#include "linear/int4_weights.h"
#include "linear/int8_products.h"
#include "linear/x_segment.h"

namespace quire::gemm {

// float16s of some columns as float32.
QUIRE_INLINE Vector widen_halves(const uint8_t* at) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtph_ps(load<__m256i>(at));
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtph_ps(load<__m128i>(at));
#else
  Vector out;
  for (int i = 0; i < kVectorLanes; ++i) {
    uint16_t bits;
    std::memcpy(&bits, at + 2 * i, 2);
    out[i] = f16_to_f32(bits);
  }
  return out;
#endif
}

// Signed bytes of some columns as float32.
QUIRE_INLINE Vector widen_bytes(const uint8_t* at) {
  const auto words = (IntVector)(widen_codes(at) << 24);
  return __builtin_convertvector(words >> 24, Vector);
}

// Groups whose numbers are widened at a time.
constexpr int64_t kGroupsAtOnce = 64;

struct WideNumbers {
  alignas(64) float scales[kGroupsAtOnce * kStripColumns];
  alignas(64) float minima[kGroupsAtOnce * kStripColumns];
};

// Those of `count` groups from `first` on, whose numbers begin at `numbers`, and what nested ones
// are multiplied by, or those of E4M3 divided by, at `nests`.
inline void widen_numbers(const Grouping& grouping, const uint8_t* numbers, const uint8_t* nests,
                          int64_t first, int64_t count, float* out) {
  for (int64_t g = first; g < first + count; ++g) {
    for (int64_t c = 0; c < kStripColumns; c += kVectorLanes, out += kVectorLanes) {
      const int64_t index = g * kStripColumns + c;
      if (grouping.e4m3) {
        store(out, e4m3_of_bytes(numbers + index) / load<Vector>(nests + 4 * c));
      } else if (grouping.nested) {
        const int64_t nest = g * grouping.group / kNestDepth * kStripColumns + c;
        store(out, widen_halves(nests + 2 * nest) * widen_bytes(numbers + index));
      } else if (grouping.half) {
        store(out, widen_halves(numbers + 2 * index));
      } else {
        store(out, load<Vector>(numbers + 4 * index));
      }
    }
  }
}

inline void widen(const GroupedStrip& layout, const uint8_t* strip, int64_t first, int64_t count,
                  WideNumbers& out) {
  const Grouping& grouping = layout.grouping;
  widen_numbers(grouping, strip, strip + layout.scale_nests_at, first, count, out.scales);
  if (!grouping.minima) return;
  widen_numbers(grouping, strip + layout.minima_at, strip + layout.minimum_nests_at, first, count,
                out.minima);
}

// So many neighbours in a row of x have a scale of their own, where rows have blocks.
constexpr int64_t kXBlock = QUIRE_X_BLOCK;

// One segment as signed bytes, each block of it with the scale that its largest number gives.
// Returns NaN where a number is not finite, else 0: such a block becomes zeros.
inline float quantise_blocks(const Rows& x, int64_t row, int64_t k, int64_t count, int8_t* out,
                             float* scales) {
  constexpr int64_t kParts = kXBlock / kLanes;
  const Segment segment = read_segment(x, row, k, count);
  I32x16 whole[kSegment / kLanes];
  float bad = 0.0f;
  for (int64_t b = 0; b < kSegment / kXBlock; ++b) {
    Extent extent;
    for (int64_t i = 0; i < kParts; ++i) extent.add(segment.v[b * kParts + i]);
    const float top = extent.top();
    const bool is_finite = extent.bad() == 0.0f;
    const float limit = limit_of(1);
    const float inverse = top > 0.0f && is_finite ? limit / top : 0.0f;
    scales[b] = is_finite ? top / limit : 0.0f;
    bad += extent.bad();
    for (int64_t i = 0; i < kParts; ++i) {
      const F32x16 v = is_finite ? segment.v[b * kParts + i] : F32x16{};
      whole[b * kParts + i] = nearest(v * inverse);
    }
  }
  store_bytes(out, whole, 0);
  return bad;
}

}  // namespace quire::gemm

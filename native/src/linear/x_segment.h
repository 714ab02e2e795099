// Reads rows of x in segments, converted to what a kernel family packs: float32, bfloat16, int8.
#pragma once

#include <algorithm>

#include "linear/family.h"
#include "simd/simd.h"

namespace quire::gemm {

constexpr int64_t kSegment = 64;  // elements of a row of x that are converted at a time

// Elements of a row as float32.
struct Segment {
  F32x16 v[kSegment / kLanes];
};

// The same where they have an order. An order from a damaged file leads to no other row.
inline Segment gather_segment(const Rows& x, int64_t row, int64_t k, int64_t count) {
  const auto* f32 = static_cast<const float*>(x.row(row));
  const auto* bf16 = static_cast<const uint16_t*>(x.row(row));
  const auto last = static_cast<uint32_t>(x.k - 1);
  float numbers[kSegment] = {};
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t at = std::min(static_cast<uint32_t>(x.order[k + i]), last);
    numbers[i] = x.dtype == DType::kF32 ? f32[at] : bf16_to_f32(bf16[at]);
  }
  Segment segment;
  std::memcpy(&segment, numbers, sizeof segment);
  return segment;
}

// `count` elements of a row, zeros after them.
QUIRE_INLINE Segment read_segment(const Rows& x, int64_t row, int64_t k, int64_t count) {
  if (x.order != nullptr) return gather_segment(x, row, k, count);
  const auto* f32 = static_cast<const float*>(x.row(row)) + k;
  const auto* bf16 = static_cast<const uint16_t*>(x.row(row)) + k;
  const bool is_f32 = x.dtype == DType::kF32;
  float padded[kSegment];
  if (count < kSegment) {
    for (int64_t i = 0; i < count; ++i) padded[i] = is_f32 ? f32[i] : bf16_to_f32(bf16[i]);
    std::fill(padded + count, padded + kSegment, 0.0f);
    f32 = padded;
  }
  Segment segment;
#pragma GCC unroll 4
  for (int64_t i = 0; i < kSegment / kLanes; ++i) {
    segment.v[i] = is_f32 || count < kSegment ? load<F32x16>(f32 + i * kLanes)
                                              : bf16_to_f32(load<U16x16>(bf16 + i * kLanes));
  }
  return segment;
}

// The same rounded to bfloat16.
QUIRE_INLINE void read_segment(const Rows& x, int64_t row, int64_t k, int64_t count,
                               uint16_t* out) {
  if (count == kSegment && x.dtype == DType::kBF16 && x.order == nullptr) {
    std::memcpy(out, static_cast<const uint16_t*>(x.row(row)) + k, kSegment * sizeof *out);
    return;
  }
  const Segment segment = read_segment(x, row, k, count);
  for (int64_t i = 0; i < kSegment / kLanes; ++i) {
    store(out + i * kLanes, f32_to_bf16(segment.v[i]));
  }
}

// How a row of x becomes integers: value * inverse, rounded, in [-limit, limit].
struct RowScale {
  float scale;
  float inverse;
};

constexpr float limit_of(int planes) { return planes == 1 ? 127.0f : 127.0f * 256.0f; }

// A NaN or an infinity anywhere in the row makes the scale NaN, and so every output of the row.
inline RowScale row_scale(const Rows& in_order, int64_t row, float limit) {
  Rows x = in_order;
  x.order = nullptr;  // the largest is the same in any order
  Extent extent;
  for (int64_t k = 0; k < x.k; k += kSegment) {
    const Segment segment = read_segment(x, row, k, std::min(kSegment, x.k - k));
    for (const F32x16& v : segment.v) extent.add(v);
  }
  const float top = extent.top();
  const float bad = extent.bad();
  return {top / limit + bad, top > 0.0f && bad == 0.0f ? limit / top : 0.0f};
}

// One segment as signed bytes: value / scale, clamped to 127, or for two planes, `plane_bytes`
// apart, high * 256 + low. kShifted adds 128.
template <int kPlanes, bool kShifted = false>
QUIRE_INLINE void quantise_segment(const Rows& x, int64_t row, int64_t k, int64_t count,
                                   float inverse, int8_t* out, int64_t plane_bytes) {
  constexpr int8_t kFlip = kShifted ? -128 : 0;
  const Segment segment = read_segment(x, row, k, count);
  I32x16 high[kSegment / kLanes];
  I32x16 low[kSegment / kLanes];
#pragma GCC unroll 4
  for (int64_t i = 0; i < kSegment / kLanes; ++i) {
    F32x16 number = segment.v[i] * inverse;
    if constexpr (kPlanes == 1) number = minimum(splat(127.0f), maximum(splat(-127.0f), number));
    const I32x16 whole = nearest(number);
    high[i] = kPlanes == 1 ? whole : (whole + 128) >> 8;
    low[i] = whole - high[i] * 256;
  }
  store_bytes(out, high, kFlip);
  if constexpr (kPlanes == 2) store_bytes(out + plane_bytes, low, kFlip);
}

}  // namespace quire::gemm

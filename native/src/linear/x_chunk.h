// Reads rows of x in chunks, converted to what a kernel family packs: float32, bfloat16, int8.
#pragma once

#include <algorithm>

#include "linear/family.h"
#include "linear/simd.h"

namespace quire::gemm {

constexpr int64_t kChunk = 64;  // elements of a row of x that are converted at a time

// `count` elements of a row as float32, zeros after them up to kChunk.
QUIRE_INLINE void read_chunk(const Rows& x, int64_t row, int64_t k, int64_t count, float* out) {
  const auto* f32 = static_cast<const float*>(x.row(row)) + k;
  const auto* bf16 = static_cast<const uint16_t*>(x.row(row)) + k;
  const bool is_f32 = x.dtype == DType::kF32;
  if (count == kChunk) {
    for (int64_t i = 0; i < kChunk; i += kLanes) {
      store(out + i, is_f32 ? load<F32x16>(f32 + i) : bf16_to_f32(load<U16x16>(bf16 + i)));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) out[i] = is_f32 ? f32[i] : bf16_to_f32(bf16[i]);
  for (int64_t i = count; i < kChunk; ++i) out[i] = 0.0f;
}

// The same rounded to bfloat16.
QUIRE_INLINE void read_chunk(const Rows& x, int64_t row, int64_t k, int64_t count, uint16_t* out) {
  if (count == kChunk && x.dtype == DType::kBF16) {
    std::memcpy(out, static_cast<const uint16_t*>(x.row(row)) + k, kChunk * sizeof *out);
    return;
  }
  float chunk[kChunk];
  read_chunk(x, row, k, count, chunk);
  for (int64_t i = 0; i < kChunk; i += kLanes) {
    store(out + i, f32_to_bf16(load<F32x16>(chunk + i)));
  }
}

// How a row of x becomes integers: value * inverse, rounded, in [-limit, limit].
struct RowScale {
  float scale;
  float inverse;
};

constexpr float limit_of(int planes) { return planes == 1 ? 127.0f : 127.0f * 256.0f; }

// A NaN or an infinity anywhere in the row makes the scale NaN, and so every output of the row.
inline RowScale row_scale(const Rows& x, int64_t row, float limit) {
  Extent extent;
  float chunk[kChunk];
  for (int64_t k = 0; k < x.k; k += kChunk) {
    read_chunk(x, row, k, std::min(kChunk, x.k - k), chunk);
    for (int64_t i = 0; i < kChunk; i += kLanes) extent.add(load<F32x16>(chunk + i));
  }
  const float top = extent.top();
  const float bad = extent.bad();
  return {top / limit + bad, top > 0.0f && bad == 0.0f ? limit / top : 0.0f};
}

// One chunk as signed bytes: value / scale, or for two planes, `plane_bytes` apart, high * 256 +
// low. kShifted adds 128.
template <int kPlanes, bool kShifted = false>
QUIRE_INLINE void quantise_chunk(const Rows& x, int64_t row, int64_t k, int64_t count,
                                 float inverse, int8_t* out, int64_t plane_bytes) {
  constexpr int8_t kFlip = kShifted ? -128 : 0;
  float chunk[kChunk];
  read_chunk(x, row, k, count, chunk);
  for (int64_t i = 0; i < kChunk; i += kLanes) {
    const I32x16 whole = nearest(load<F32x16>(chunk + i) * inverse);
    if constexpr (kPlanes == 1) {
      store(out + i, bytes_of(whole) ^ kFlip);
    } else {
      const I32x16 high = (whole + 128) >> 8;
      store(out + i, bytes_of(high) ^ kFlip);
      store(out + plane_bytes + i, bytes_of(whole - high * 256) ^ kFlip);
    }
  }
}

}  // namespace quire::gemm

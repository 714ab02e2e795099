// Scales and minima of a strip's groups as float32, and activations with a scale for each block.
#pragma once

#include "linear/grouped/grouped_weights.h"
#include "linear/int4_weights.h"
#include "linear/int8_products.h"
#include "linear/x_segment.h"
#include "simd/narrow.h"

namespace quire::gemm {

// float16s of some columns as float32.
QUIRE_INLINE Vector widen_halves(const uint8_t* at) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtph_ps(load<__m256i>(at));
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtph_ps(load<__m128i>(at));
#else
  return widen_some_halves(at);
#endif
}

// Signed bytes of some columns as float32.
QUIRE_INLINE Vector widen_bytes(const uint8_t* at) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(at)));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
  const auto words = (IntVector)(widen_codes(at) << 24);
  return __builtin_convertvector(words >> 24, Vector);
#endif
}

// What numbers of 4 bits divided by one number after the other are.
class Quotients {
 public:
#if defined(__AVX2__)
  // A product with the reciprocal may be one rounding off. Its remainder, which fits in a float32,
  // mends that: for every number of 4 bits and divisor of 24 bits the result is the quotient, where
  // nothing on the way is subnormal or too large.
  explicit QUIRE_INLINE Quotients(Vector divisor)
      : reciprocal_(1.0f / divisor), is_moderate_(is_moderate(divisor)), divisor_(divisor) {}

  QUIRE_INLINE Vector of(Vector number) const {
    if (!is_moderate_) return number / divisor_;
    const Vector near = number * reciprocal_;
    return fused(near, fused(number, -near, divisor_), reciprocal_);
  }

 private:
  // Whether all sizes are from 2^-64 to 2^64.
  static QUIRE_INLINE bool is_moderate(Vector divisor) {
    const BitVector sizes = (BitVector)divisor & 0x7fffffffu;
    const BitVector outside = (sizes - 0x1f800000u) & 0xc0000000u;
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)outside, (__m512i)outside) == 0;
#else
    return _mm256_testz_si256((__m256i)outside, (__m256i)outside) != 0;
#endif
  }

  Vector reciprocal_;
  bool is_moderate_;
#else
  explicit QUIRE_INLINE Quotients(Vector divisor) : divisor_(divisor) {}
  QUIRE_INLINE Vector of(Vector number) const { return number / divisor_; }

 private:
#endif
  Vector divisor_;
};

// Groups whose numbers are widened at a time, of whole chunks.
constexpr int64_t kGroupsAtOnce = 64;

struct WideNumbers {
  alignas(64) float scales[kGroupsAtOnce * kStripColumns];
  alignas(64) float minima[kGroupsAtOnce * kStripColumns];
};

// Those of the first `count` groups of a chunk, which begin at `numbers`, and what nested ones are
// multiplied by, or those of E4M3 divided by, at `nests`.
QUIRE_INLINE void widen_numbers(const Grouping& grouping, const uint8_t* numbers,
                                const uint8_t* nests, int64_t count, float* out) {
  const int64_t columns = count * kStripColumns;
  // Calls `widened` with the place of each vector of numbers and what its columns have.
  const auto each = [&](const auto& of_columns, const auto& widened) {
    for (int64_t column = 0; column < kStripColumns; column += kVectorLanes) {
      const auto nest = of_columns(column);
#pragma GCC unroll 8
      for (int64_t i = column; i < columns; i += kStripColumns) store(out + i, widened(i, nest));
    }
  };
  const auto nothing = [](int64_t) { return Vector{}; };
  if (grouping.e4m3) {
    each([&](int64_t column) { return Quotients(load<Vector>(nests + 4 * column)); },
         [&](int64_t i, const Quotients& all) { return all.of(e4m3_of_bytes(numbers + i)); });
  } else if (grouping.nested) {
    each([&](int64_t column) { return widen_halves(nests + 2 * column); },
         [&](int64_t i, Vector nest) { return nest * widen_bytes(numbers + i); });
  } else if (grouping.half) {
    each(nothing, [&](int64_t i, Vector) { return widen_halves(numbers + 2 * i); });
  } else {
    each(nothing, [&](int64_t i, Vector) { return load<Vector>(numbers + 4 * i); });
  }
}

// Those of `count` groups from `first` on, which is the first of a chunk.
inline void widen(const GroupedStrip& layout, const uint8_t* strip, int64_t first, int64_t count,
                  WideNumbers& out) {
  const Grouping& grouping = layout.grouping;
  const uint8_t* chunk = strip + layout.chunk_of(first);
  for (int64_t g = 0; g < count; g += layout.chunk_groups, chunk += layout.chunk_bytes) {
    const int64_t some = std::min(layout.chunk_groups, count - g);
    const int64_t at = g * kStripColumns;
    widen_numbers(grouping, chunk, chunk + layout.scale_nests_at, some, out.scales + at);
    if (!grouping.minima) continue;
    widen_numbers(grouping, chunk + layout.minima_at, chunk + layout.minimum_nests_at, some,
                  out.minima + at);
  }
}

// So many numbers of a row of x have a sum of their own.
constexpr int64_t kTotalDepth = 16;

// The sums of a segment's bytes.
QUIRE_INLINE void total_bytes(const int8_t* bytes, int32_t* out) {
#if defined(__AVX512VNNI__)
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, _mm512_loadu_si512(bytes));
  sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
  sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
  store(out, _mm_unpacklo_epi64(_mm_unpacklo_epi32(_mm512_castsi512_si128(sums),
                                                   _mm512_extracti32x4_epi32(sums, 1)),
                                _mm_unpacklo_epi32(_mm512_extracti32x4_epi32(sums, 2),
                                                   _mm512_extracti32x4_epi32(sums, 3))));
#elif defined(__AVX2__)
  for (int64_t at = 0; at < kSegment; at += 2 * kTotalDepth, out += 2) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load<__m256i>(bytes + at));
    __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
    out[0] = _mm256_extract_epi32(sums, 0);
    out[1] = _mm256_extract_epi32(sums, 4);
  }
#else
  for (int64_t at = 0; at < kSegment; at += kTotalDepth, ++out) *out = total_of(bytes + at);
#endif
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

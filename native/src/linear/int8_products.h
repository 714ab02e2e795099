// int8 products on vector registers: exact integer sums, scaled when K is done.
//
// Integer sums have no order, so every tier gives the same integers whatever its instructions.
#pragma once

#include "linear/vector_products.h"

namespace quire::gemm {

typedef int32_t IntVector __attribute__((vector_size(kVectorLanes * 4)));

template <int kPlanes_>
struct QuantisedX {
  static constexpr int kPlanes = kPlanes_;
  static constexpr bool kQuantised = true;
  static constexpr int kDepth = 4;
  using Sum = IntVector;
  using Weight = IntVector;
  using Broadcast = IntVector;

  static QUIRE_INLINE Weight weight(const uint8_t* line) { return load<IntVector>(line); }
  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) {
    int32_t word;
    std::memcpy(&word, unit, sizeof word);
    return word - IntVector{};
  }
};

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
// The instruction multiplies unsigned by signed bytes: x is shifted by 128, and 128 times the sum
// of a column's weights is taken off at the end.
template <int kPlanes>
struct Int8Product : QuantisedX<kPlanes> {
  static constexpr bool kUnsignedX = true;
  static constexpr int kUnits = 1;
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w, int) {
#if defined(__AVX512VNNI__)
    return (IntVector)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#else
    return (IntVector)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w);
#endif
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kChunk]) {
    int8_t planes[kPlanes][kChunk];
    quantise_chunk<kPlanes>(x, row, k, count, inverse, planes);
    for (int p = 0; p < kPlanes; ++p) {
      for (int64_t i = 0; i < kChunk; ++i) planes[p][i] = static_cast<int8_t>(planes[p][i] ^ 0x80);
      std::memcpy(out[p], planes[p], kChunk);
    }
  }
};
#else
// Bytes are widened to 16 bits in place: the even ones of a word by two shifts, the odd ones by
// one; x comes as the matching pairs of 16 bits.
template <int kPlanes>
struct Int8Product : QuantisedX<kPlanes> {
  static constexpr bool kUnsignedX = false;
  static constexpr int kUnits = 2;
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w, int unit) {
#if defined(__AVX2__)
    const __m256i bytes = (__m256i)w;
    const __m256i pair =
        unit == 0 ? _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8) : _mm256_srai_epi16(bytes, 8);
    return sum + (IntVector)_mm256_madd_epi16(pair, (__m256i)x);
#elif defined(__SSE2__)
    const __m128i bytes = (__m128i)w;
    const __m128i pair =
        unit == 0 ? _mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8) : _mm_srai_epi16(bytes, 8);
    return sum + (IntVector)_mm_madd_epi16(pair, (__m128i)x);
#else
    const IntVector low = unit == 0 ? (w << 24) >> 24 : (w << 16) >> 24;
    const IntVector high = unit == 0 ? (w << 8) >> 24 : w >> 24;
    return sum + low * ((x << 16) >> 16) + high * (x >> 16);
#endif
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kChunk]) {
    int8_t planes[kPlanes][kChunk];
    quantise_chunk<kPlanes>(x, row, k, count, inverse, planes);
    const auto pair = [](int8_t low, int8_t high) {
      return static_cast<uint32_t>(static_cast<uint16_t>(low)) |
             static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
    };
    for (int p = 0; p < kPlanes; ++p) {
      for (int64_t i = 0; i < kChunk; i += 4) {
        const int8_t* quad = planes[p] + i;
        out[p][i / 2] = pair(quad[0], quad[2]);
        out[p][i / 2 + 1] = pair(quad[1], quad[3]);
      }
    }
  }
};
#endif

}  // namespace quire::gemm

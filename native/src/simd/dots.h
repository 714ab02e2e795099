// Instructions that add several products to each lane of 32 bits, on the tiers that have them.
#pragma once

#include "simd/lanes.h"

namespace quire::gemm {

// QUIRE_DOTS_OF_BYTES: four products of bytes, which are exact. x86 multiplies bytes of `a` without
// a sign and bytes of `b` with one; aarch64 multiplies bytes that both have a sign.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define QUIRE_DOTS_OF_BYTES
QUIRE_INLINE I32Part dot_bytes(I32Part sum, I32Part a, I32Part b) {
#if defined(__AVX512VNNI__)
  return (I32Part)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  return (I32Part)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#endif
}
#elif defined(__ARM_FEATURE_DOTPROD)
#define QUIRE_DOTS_OF_BYTES
QUIRE_INLINE I32Part dot_bytes(I32Part sum, I32Part a, I32Part b) {
  return vdotq_s32(sum, (int8x16_t)a, (int8x16_t)b);
}
#endif

// Two products of 16 bits with a sign, which are exact.
QUIRE_INLINE I32Part dot_words(I32Part sum, I32Part a, I32Part b) {
#if defined(__AVX512VNNI__)
  return (I32Part)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (I32Part)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return sum + (I32Part)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool kSignedDots = true;
#else
constexpr bool kSignedDots = false;
#endif
// These words make `a` of signed bytes and of bytes without a sign, by an exclusive or. Where they
// change the bytes, the sums have 128 times the sum of `b` too much, or too little.
constexpr int32_t kFlipSigned = kSignedDots ? 0 : static_cast<int32_t>(0x80808080u);
constexpr int32_t kFlipUnsigned = kSignedDots ? static_cast<int32_t>(0x80808080u) : 0;

// QUIRE_TILES_OF_BYTES: two rows of eight signed bytes with two columns. The sums are those of the
// first row, then those of the second.
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define QUIRE_TILES_OF_BYTES
QUIRE_INLINE I32Part dot_tiles(I32Part sum, I32Part rows, I32Part columns) {
  return vmmlaq_s32(sum, (int8x16_t)rows, (int8x16_t)columns);
}
// The rows, of four bytes of each at `first` and the next four at `second`.
QUIRE_INLINE I32Part tile_of_rows(const uint32_t* first, const uint32_t* second) {
  const auto low = [](const uint32_t* p) { return vcombine_u32(vld1_u32(p), vdup_n_u32(0)); };
  return (I32Part)vzip1q_u32(low(first), low(second));
}
#endif

// QUIRE_DOTS_OF_BF16: two products of bfloat16. The instruction takes subnormals as zeros.
#if defined(__AVX512BF16__)
#define QUIRE_DOTS_OF_BF16
QUIRE_INLINE F32Part dot_bf16(F32Part sum, U32Part a, U32Part b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define QUIRE_DOTS_OF_BF16
QUIRE_INLINE F32Part dot_bf16(F32Part sum, U32Part a, U32Part b) {
  return vbfdotq_f32(sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
}
#endif

}  // namespace quire::gemm

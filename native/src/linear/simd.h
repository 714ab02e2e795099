// Sixteen floats at a time, on any machine.
//
// Written with the compiler's vector extension: one source gives zmm, ymm pairs, xmm or NEON quads.
// Used by everything in linear/ that is not an inner loop. A function here performs the same
// operations on every lane, which is what keeps results independent of neighbours.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define QUIRE_INLINE inline __attribute__((always_inline))

namespace quire::gemm {

constexpr int kLanes = 16;

typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));

template <class V>
QUIRE_INLINE V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
QUIRE_INLINE void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

QUIRE_INLINE F32x16 splat(float x) { return F32x16{} + x; }
QUIRE_INLINE U32x16 bits(F32x16 v) { return (U32x16)v; }
QUIRE_INLINE F32x16 select(I32x16 mask, F32x16 yes, F32x16 no) { return mask ? yes : no; }
QUIRE_INLINE F32x16 minimum(F32x16 a, F32x16 b) { return a < b ? a : b; }
QUIRE_INLINE F32x16 maximum(F32x16 a, F32x16 b) { return a > b ? a : b; }
QUIRE_INLINE F32x16 absolute(F32x16 v) { return (F32x16)(bits(v) & 0x7fffffffu); }

QUIRE_INLINE F32x16 bf16_to_f32(U16x16 v) {
  return (F32x16)(__builtin_convertvector(v, U32x16) << 16);
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
QUIRE_INLINE U16x16 f32_to_bf16(F32x16 v) {
#if defined(__AVX512BF16__)
  // The instruction also flushes subnormals, as the bfloat16 products do.
  return (U16x16)_mm512_cvtneps_pbh((__m512)v);
#else
  const U32x16 u = bits(v);
  const U32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U32x16 quiet = (u >> 16) | 0x40u;
  const U32x16 result = (U32x16)((u & 0x7fffffffu) > 0x7f800000u ? (I32x16)quiet : (I32x16)rounded);
  return __builtin_convertvector(result, U16x16);
#endif
}

QUIRE_INLINE float bf16_to_f32(uint16_t v) {
  const uint32_t u = static_cast<uint32_t>(v) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

QUIRE_INLINE uint16_t f32_to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

QUIRE_INLINE float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7fffu;
  // Scaling by 2^112 moves the exponent to float's bias and normalises subnormals exactly.
  const uint32_t scaled = rest << 13;
  float f;
  std::memcpy(&f, &scaled, sizeof f);
  f *= 0x1p112f;
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  if (rest >= 0x7c00u) u = 0x7f800000u | (rest & 0x3ffu) << 13;
  u |= sign;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

}  // namespace quire::gemm

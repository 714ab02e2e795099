// What the row-wise ops and attention need beyond linear/simd.h: fused multiply-add, reductions,
// loads and stores of a value's own type with a tail, and a fast power of two.
//
// Everything has one order of operations per tier. The compiler may not contract a * b + c
// (-ffp-contract=off): where a fused operation is wanted, `fma` says so, and the bits of an
// expression do not depend on the loop that it was inlined into.
#pragma once

#include <cstdint>
#include <cstring>

#include "linear/activation.h"
#include "linear/simd.h"
#include "quire.h"

namespace quire {

using gemm::F32x16;
using gemm::I32x16;
using gemm::kLanes;
using gemm::splat;
using gemm::U16x16;
using gemm::U32x16;

#if defined(__AVX2__) && !defined(__AVX512F__)
// The compiler splits 64-byte vectors in two, but knows no fma or max for the pair.
struct Halves {
  __m256 lo;
  __m256 hi;
};
QUIRE_INLINE Halves halves(F32x16 v) { return __builtin_bit_cast(Halves, v); }
QUIRE_INLINE F32x16 whole(__m256 lo, __m256 hi) {
  return __builtin_bit_cast(F32x16, Halves{lo, hi});
}
#endif

// a * b + c, rounded once where the machine can.
QUIRE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
#if defined(__AVX512F__)
  return (F32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  const Halves x = halves(a), y = halves(b), z = halves(c);
  return whole(_mm256_fmadd_ps(x.lo, y.lo, z.lo), _mm256_fmadd_ps(x.hi, y.hi, z.hi));
#else
  return a * b + c;
#endif
}

QUIRE_INLINE F32x16 max(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return (F32x16)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  const Halves x = halves(a), y = halves(b);
  return whole(_mm256_max_ps(x.lo, y.lo), _mm256_max_ps(x.hi, y.hi));
#else
  return a > b ? a : b;
#endif
}

// The sum of the lanes, always in the same tree.
QUIRE_INLINE float sum_lanes(F32x16 v) {
  float a[kLanes];
  std::memcpy(a, &v, sizeof v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] += a[i + width];
  }
  return a[0];
}

QUIRE_INLINE float max_lanes(F32x16 v) {
  float a[kLanes];
  std::memcpy(a, &v, sizeof v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
  }
  return a[0];
}

// Round to nearest even.
QUIRE_INLINE U16x16 to_bf16(F32x16 v) {
#if defined(__AVX512BF16__)
  return (U16x16)_mm512_cvtneps_pbh((__m512)v);
#else
  return gemm::f32_to_bf16(v);
#endif
}

QUIRE_INLINE F32x16 load_f32(const float* p) { return gemm::load<F32x16>(p); }
QUIRE_INLINE F32x16 load_bf16(const uint16_t* p) {
  return gemm::bf16_to_f32(gemm::load<U16x16>(p));
}

// Elements i .. i + n - 1 of a row of type `dtype`, n <= 16; the lanes above are 0.
QUIRE_INLINE F32x16 load_some(const void* row, int32_t dtype, int64_t i, int64_t n) {
  if (dtype == QUIRE_F32) {
    const float* p = static_cast<const float*>(row) + i;
    if (n >= kLanes) return load_f32(p);
    F32x16 v = {};
    std::memcpy(&v, p, n * sizeof *p);
    return v;
  }
  const uint16_t* p = static_cast<const uint16_t*>(row) + i;
  if (n >= kLanes) return load_bf16(p);
  U16x16 v = {};
  std::memcpy(&v, p, n * sizeof *p);
  return gemm::bf16_to_f32(v);
}

QUIRE_INLINE void store_some(void* row, int32_t dtype, int64_t i, int64_t n, F32x16 v) {
  const size_t count = n < kLanes ? n : kLanes;
  if (dtype == QUIRE_F32) {
    float* p = static_cast<float*>(row) + i;
    if (n >= kLanes) {
      gemm::store(p, v);
    } else {
      std::memcpy(p, &v, count * sizeof *p);
    }
    return;
  }
  const U16x16 narrow = to_bf16(v);
  uint16_t* p = static_cast<uint16_t*>(row) + i;
  if (n >= kLanes) {
    gemm::store(p, narrow);
  } else {
    std::memcpy(p, &narrow, count * sizeof *p);
  }
}

// 2^x for x <= 0 (anything below -126 gives 0), relative error below 3e-7.
// Polynomial of degree 6 on [-1/2, 1/2]: the Taylor terms of 2^x, ln(2)^i / i!.
QUIRE_INLINE F32x16 exp2_nonpositive(F32x16 x) {
#if defined(__AVX512F__)
  const F32x16 n = (F32x16)_mm512_roundscale_ps((__m512)max(x, splat(-150.0f)), 8);
#else
  const F32x16 n = gemm::round_whole(max(x, splat(-150.0f)));
#endif
  const F32x16 f = max(x, splat(-150.0f)) - n;
  F32x16 p = splat(1.54035304e-4f);
  p = fma(p, f, splat(1.33335581e-3f));
  p = fma(p, f, splat(9.61812911e-3f));
  p = fma(p, f, splat(5.55041087e-2f));
  p = fma(p, f, splat(2.40226507e-1f));
  p = fma(p, f, splat(6.93147181e-1f));
  p = fma(p, f, splat(1.0f));
#if defined(__AVX512F__)
  const F32x16 y = (F32x16)_mm512_scalef_ps((__m512)p, (__m512)n);
  return (F32x16)_mm512_maskz_mov_ps(
      _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ), (__m512)y);
#else
  const I32x16 exponent = __builtin_convertvector(n, I32x16) + 127;
  const F32x16 y = p * (F32x16)((exponent > 0 ? exponent : exponent ^ exponent) << 23);
  return gemm::select(x >= -126.0f, y, splat(0.0f));
#endif
}

}  // namespace quire

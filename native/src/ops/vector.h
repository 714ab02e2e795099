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

typedef float F32x8 __attribute__((vector_size(32)));
typedef float F32x4 __attribute__((vector_size(16)));

// Lanes i of the result are f(lane i, lane i + half) down to one: the same tree on every tier.
template <class F>
QUIRE_INLINE float reduce_lanes(F32x16 v, F f) {
  const F32x8 lo = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  const F32x8 hi = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const F32x8 eight = f(lo, hi);
  const F32x4 four = f(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                       __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  const F32x4 two = f(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  const F32x4 one = f(two, __builtin_shufflevector(two, two, 1, 0, 3, 2));
  return one[0];
}

QUIRE_INLINE float sum_lanes(F32x16 v) {
  return reduce_lanes(v, [](auto a, auto b) { return a + b; });
}

QUIRE_INLINE float max_lanes(F32x16 v) {
  return reduce_lanes(v, [](auto a, auto b) { return a > b ? a : b; });
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

// 2^x for x <= 0, 0 below the normal numbers; relative error below 2e-7.
// Minimax polynomial of degree 5 on [-1/2, 1/2], fitted with its constant term held at 1.
QUIRE_INLINE F32x16 exp2_nonpositive(F32x16 x) {
#if defined(__AVX512F__)
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_GE_OQ);
  const F32x16 n = (F32x16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
  const F32x16 f = x - n;
#else
  const F32x16 clamped = max(x, splat(-127.0f));
  const F32x16 n = gemm::round_whole(clamped);
  const F32x16 f = clamped - n;
#endif
  F32x16 p = splat(1.326472731307149e-3f);
  p = fma(p, f, splat(9.671512991189957e-3f));
  p = fma(p, f, splat(5.550733581185341e-2f));
  p = fma(p, f, splat(2.4022242426872253e-1f));
  p = fma(p, f, splat(6.931470036506653e-1f));
  p = fma(p, f, splat(1.0f));
#if defined(__AVX512F__)
  // Masked rather than scaled to nothing: a result below the normal numbers costs the processor
  // hundreds of cycles.
  return (F32x16)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
#else
  // The exponent field of 2^-127 is 0: the factor is then 0 itself.
  return p * (F32x16)((__builtin_convertvector(n, I32x16) + 127) << 23);
#endif
}

}  // namespace quire

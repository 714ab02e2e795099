// What the row-wise ops and attention need beyond simd/simd.h: loads and stores of a value's own
// type with a tail, fetching ahead, and a fast power of two.
//
// Everything has one order of operations per tier. The compiler may not contract a * b + c
// (-ffp-contract=off): where a fused operation is wanted, `fma` says so, and the bits of an
// expression do not depend on the loop that it was inlined into.
#pragma once

#include <cstdint>
#include <cstring>

#include "linear/activation.h"
#include "quire.h"
#include "simd/simd.h"

namespace quire {

using gemm::exp2_nonpositive;
using gemm::F32x16;
using gemm::fma;
using gemm::I32x16;
using gemm::kLanes;
using gemm::max_lanes;
using gemm::maximum;
using gemm::splat;
using gemm::sum_lanes;
using gemm::U16x16;
using gemm::U32x16;

// Round to nearest even.
QUIRE_INLINE U16x16 to_bf16(F32x16 v) { return gemm::f32_to_bf16(v); }

QUIRE_INLINE F32x16 load_f32(const float* p) { return gemm::load<F32x16>(p); }
QUIRE_INLINE F32x16 load_bf16(const uint16_t* p) {
  return gemm::bf16_to_f32(gemm::load<U16x16>(p));
}

// Prefetches a piece of memory into the second-level cache. Small pieces between the arithmetic
// keep memory busy all the time: many prefetches in a row wait for each other.
QUIRE_INLINE void fetch_lines(const uint8_t* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}
// The same for memory that will be written.
QUIRE_INLINE void fetch_lines_to_write(const uint8_t* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 1);
}

// Elements i .. i + n - 1 of a row of type `dtype`, n <= 16; the lanes above are 0.
QUIRE_INLINE F32x16 load_some(const void* row, int32_t dtype, int64_t i, int64_t n) {
  if (dtype == QUIRE_F32) {
    const float* p = static_cast<const float*>(row) + i;
    if (n >= kLanes) return load_f32(p);
    float some[kLanes] = {};
    std::memcpy(some, p, n * sizeof *p);
    return load_f32(some);
  }
  const uint16_t* p = static_cast<const uint16_t*>(row) + i;
  if (n >= kLanes) return load_bf16(p);
  uint16_t some[kLanes] = {};
  std::memcpy(some, p, n * sizeof *p);
  return load_bf16(some);
}

QUIRE_INLINE void store_some(void* row, int32_t dtype, int64_t i, int64_t n, F32x16 v) {
  const size_t count = n < kLanes ? n : kLanes;
  if (dtype == QUIRE_F32) {
    float* p = static_cast<float*>(row) + i;
    if (n >= kLanes) {
      gemm::store(p, v);
    } else {
      float some[kLanes];
      gemm::store(some, v);
      std::memcpy(p, some, count * sizeof *p);
    }
    return;
  }
  const U16x16 narrow = to_bf16(v);
  uint16_t* p = static_cast<uint16_t*>(row) + i;
  if (n >= kLanes) {
    gemm::store(p, narrow);
  } else {
    uint16_t some[kLanes];
    gemm::store(some, narrow);
    std::memcpy(p, some, count * sizeof *p);
  }
}

// 2^x for x <= 0 whose results are rounded to bfloat16: relative error below 1e-4.
// Minimax polynomial of degree 3 on [0, 1), fitted with the constant term 1.
QUIRE_INLINE F32x16 exp2_for_bf16(F32x16 x) {
#if defined(__AVX512F__)
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  const F32x16 f = (F32x16)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
  F32x16 p = splat(7.706719743373773e-2f);
  p = fma(p, f, splat(2.2764482191480193e-1f));
  p = fma(p, f, splat(6.951168245278158e-1f));
  p = fma(p, f, splat(1.0f));
  // The factor is 2 to the whole number below x.
  return (F32x16)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)x);
#else
  return exp2_nonpositive(x);
#endif
}

// Calls f(i, n) for every vector of a row, elements i .. i + n - 1.
template <class F>
QUIRE_INLINE void by_vectors(int64_t dim, F f) {
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) f(i, int64_t{kLanes});
  if (i < dim) f(i, dim - i);
}

}  // namespace quire

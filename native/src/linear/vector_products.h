// How one line of packed weights meets one element of x, for each kind of product.
//
// A product says what a step of K is: kDepth elements of K, kUnits broadcasts of 4 bytes for each
// row of x, and one line of weights. `pack_row` writes a row of x as those units, `stride` apart.
#pragma once

#include "linear/family.h"
#include "linear/simd.h"

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace quire::gemm {

#if defined(__AVX512F__)
constexpr int kVectorLanes = 16;
#elif defined(__AVX2__)
constexpr int kVectorLanes = 8;
#else
constexpr int kVectorLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(kVectorLanes * 4)));
typedef uint32_t BitVector __attribute__((vector_size(kVectorLanes * 4)));

// sum + a * b, fused where the machine can: the same in every place of a tier.
QUIRE_INLINE Vector fused(Vector sum, Vector a, Vector b) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, sum);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, sum);
#elif defined(__ARM_NEON)
  return vfmaq_f32(sum, a, b);
#else
  return sum + a * b;
#endif
}

QUIRE_INLINE float read_f32(const Rows& x, int64_t row, int64_t k) {
  const void* p = x.row(row);
  return x.dtype == DType::kF32 ? static_cast<const float*>(p)[k]
                                : bf16_to_f32(static_cast<const uint16_t*>(p)[k]);
}

QUIRE_INLINE uint16_t read_bf16(const Rows& x, int64_t row, int64_t k) {
  const void* p = x.row(row);
  return x.dtype == DType::kF32 ? f32_to_bf16(static_cast<const float*>(p)[k])
                                : static_cast<const uint16_t*>(p)[k];
}

QUIRE_INLINE uint32_t as_bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return u;
}

struct F32Product {
  static constexpr int kDepth = 1;
  static constexpr int kUnits = 1;
  using Weight = Vector;
  using Broadcast = Vector;

  static QUIRE_INLINE Weight weight(const uint8_t* line) { return load<Vector>(line); }
  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) {
    float f;
    std::memcpy(&f, unit, sizeof f);
    return Vector{} + f;
  }
  static QUIRE_INLINE Vector multiply_add(Vector sum, Broadcast x, Weight w, int /*unit*/) {
    return fused(sum, x, w);
  }
  static void pack_row(const Rows& x, int64_t row, int64_t, int64_t stride, uint32_t* out) {
    for (int64_t k = 0; k < x.k; ++k) out[k * stride] = as_bits(read_f32(x, row, k));
  }
};

// Where no bfloat16 instructions exist: a line holds pairs, widened by a shift and a mask.
struct Bf16Widened {
  static constexpr int kDepth = 2;
  static constexpr int kUnits = 2;
  struct Weight {
    Vector unit[2];
  };
  using Broadcast = Vector;

  static QUIRE_INLINE Weight weight(const uint8_t* line) {
    const BitVector pairs = load<BitVector>(line);
    return {{(Vector)(pairs << 16), (Vector)(pairs & 0xffff0000u)}};
  }
  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) {
    return F32Product::broadcast(unit);
  }
  static QUIRE_INLINE Vector multiply_add(Vector sum, Broadcast x, const Weight& w, int unit) {
    return fused(sum, x, w.unit[unit]);
  }
  static void pack_row(const Rows& x, int64_t row, int64_t k_padded, int64_t stride,
                       uint32_t* out) {
    for (int64_t k = 0; k < x.k; ++k) {
      out[k * stride] = static_cast<uint32_t>(read_bf16(x, row, k)) << 16;
    }
    for (int64_t k = x.k; k < k_padded; ++k) out[k * stride] = 0;
  }
};

#if defined(__AVX512BF16__)
struct Bf16Dot {
  static constexpr int kDepth = 2;
  static constexpr int kUnits = 1;
  using Weight = __m512bh;
  using Broadcast = __m512bh;

  static QUIRE_INLINE Weight weight(const uint8_t* line) {
    return (__m512bh)_mm512_loadu_si512(line);
  }
  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) {
    return (__m512bh)_mm512_set1_epi32(static_cast<int>(*unit));
  }
  static QUIRE_INLINE Vector multiply_add(Vector sum, Broadcast x, Weight w, int /*unit*/) {
    return _mm512_dpbf16_ps(sum, x, w);
  }
  static void pack_row(const Rows& x, int64_t row, int64_t k_padded, int64_t stride,
                       uint32_t* out) {
    for (int64_t k = 0; k < k_padded; k += 2) {
      const uint32_t low = read_bf16(x, row, k);
      const uint32_t high = k + 1 < x.k ? read_bf16(x, row, k + 1) : 0;
      out[k / 2 * stride] = low | high << 16;
    }
  }
};
#endif

}  // namespace quire::gemm

// Activation functions on sixteen lanes.
//
// Every lane goes through the same operations, whatever its value.
#pragma once

#include <type_traits>

#include "linear/linear.h"
#include "simd/simd.h"

namespace quire::gemm {

// 2^n for whole n in [-126, 127], given as floats.
QUIRE_INLINE F32x16 exp2_whole(F32x16 n) { return as<F32x16>((convert<I32x16>(n) + 127) << 23); }

// x * 2^n likewise.
QUIRE_INLINE F32x16 scaled_by_exp2(F32x16 x, F32x16 n) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(x, n);
#else
  return x * exp2_whole(n);
#endif
}

// Source: Cephes expf (argument reduction by ln 2 in two parts, polynomial of degree 6).
QUIRE_INLINE F32x16 exponential(F32x16 x) {
  // In this order a NaN stays one.
  const F32x16 clamped = maximum(splat(-87.3f), minimum(splat(88.3f), x));
  const F32x16 n = round_whole(clamped * 1.44269504088896341f);
  const F32x16 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
  F32x16 p = fma(r, splat(1.9875691500e-4f), splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return scaled_by_exp2(fma(p, r * r, r) + 1.0f, n);
}

// 2^f for f in [-1/2, 1/2]; relative error below 2e-7.
// Minimax polynomial of degree 5, fitted with the constant term 1.
QUIRE_INLINE F32x16 exp2_of_fraction(F32x16 f) {
  F32x16 p = splat(1.326472731307149e-3f);
  p = fma(p, f, splat(9.671512991189957e-3f));
  p = fma(p, f, splat(5.550733581185341e-2f));
  p = fma(p, f, splat(2.4022242426872253e-1f));
  p = fma(p, f, splat(6.931470036506653e-1f));
  return fma(p, f, splat(1.0f));
}

// 2^x of x clamped to [-126, 127].
QUIRE_INLINE F32x16 exp2_of(F32x16 x) {
  // In this order a NaN stays one.
  const F32x16 clamped = maximum(splat(-126.0f), minimum(splat(127.0f), x));
  const F32x16 n = round_whole(clamped);
  return scaled_by_exp2(exp2_of_fraction(clamped - n), n);
}

// 2^x for x <= 0, 0 below the normal numbers; a NaN stays one. Relative error below 2e-7.
QUIRE_INLINE F32x16 exp2_nonpositive(F32x16 x) {
#if defined(__AVX512F__)
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  const F32x16 n = (F32x16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
  const F32x16 f = x - n;
#else
  const F32x16 clamped = maximum(splat(-127.0f), x);  // in this order a NaN stays one
  const F32x16 n = round_whole(clamped);
  const F32x16 f = clamped - n;
#endif
  const F32x16 p = exp2_of_fraction(f);
#if defined(__AVX512F__)
  // Masked rather than scaled to nothing: a result below the normal numbers costs the processor
  // hundreds of cycles.
  return (F32x16)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
#else
  // The exponent field of 2^-127 is 0: the factor is then 0 itself.
  return p * exp2_whole(n);
#endif
}

QUIRE_INLINE F32x16 tanh_of(F32x16 x) {
  // Near 0 the quotient below cancels, so a polynomial in x^2 stands in (Source: Cephes tanhf).
  const F32x16 a = absolute(x);
  const F32x16 s = x * x;
  F32x16 p = s * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * s + -5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s + -3.33332819422e-1f;
  const F32x16 small = p * s * x + x;
  const F32x16 e = exponential(a * -2.0f);
  const F32x16 large = (1.0f - e) / (1.0f + e);
  const F32x16 signed_large = as<F32x16>(bits(large) | (bits(x) & 0x80000000u));
  return if_less(a, splat(0.625f), small, signed_large);
}

// x * P(X <= x) of a normal X, as max(x, 0) - |x| * P(X > |x|): nothing cancels for negative x.
//
// log2 P(X > a) is a polynomial of degree 10 in a, a minimax fit on [0, 6] with the constant term
// -1, which keeps falling beyond 6. Absolute error below 3e-7, relative error below 2e-6 for
// x > -3 and 1e-5 for x > -6. Infinity gives a NaN.
QUIRE_INLINE F32x16 gelu(F32x16 x) {
  const F32x16 a = absolute(x);
  F32x16 p = splat(-2.503174023615884e-8f);
  p = fma(p, a, splat(7.605418090861349e-7f));
  p = fma(p, a, splat(-9.892477464745753e-6f));
  p = fma(p, a, splat(6.999493052717298e-5f));
  p = fma(p, a, splat(-2.5645195273682475e-4f));
  p = fma(p, a, splat(-5.065035293227993e-5f));
  p = fma(p, a, splat(7.012352347373962e-3f));
  p = fma(p, a, splat(-5.2488163113594055e-2f));
  p = fma(p, a, splat(-4.592045247554779e-1f));
  p = fma(p, a, splat(-1.1511062383651733f));
  p = fma(p, a, splat(-1.0f));
  // In this order a NaN stays one.
  return fma(-a, exp2_nonpositive(p), maximum(F32x16{}, x));
}

template <Activation kind>
QUIRE_INLINE F32x16 activate(F32x16 x) {
  constexpr float kLog2E = 1.44269504088896341f;
  if constexpr (kind == QUIRE_ACTIVATION_SILU) return x / (1.0f + exp2_of(x * -kLog2E));
  if constexpr (kind == QUIRE_ACTIVATION_GELU) return gelu(x);
  if constexpr (kind == QUIRE_ACTIVATION_GELU_TANH) {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
    constexpr float kFactor = -2.0f * 0.79788456080286536f * kLog2E;
    const F32x16 exponent = x * fma(x * x, splat(0.044715f * kFactor), splat(kFactor));
    return x / (1.0f + exp2_of(exponent));
  }
  if constexpr (kind == QUIRE_ACTIVATION_RELU) return if_less(x, F32x16{}, F32x16{}, x);
  if constexpr (kind == QUIRE_ACTIVATION_RELU2) {
    const F32x16 positive = if_less(x, F32x16{}, F32x16{}, x);
    return positive * positive;
  }
  if constexpr (kind == QUIRE_ACTIVATION_GELU_QUICK) {
    return x / (1.0f + exp2_of(x * (-1.702f * kLog2E)));
  }
  if constexpr (kind == QUIRE_ACTIVATION_TANH) return tanh_of(x);
  return x;
}

// What becomes of a gate and an up.
template <Activation kind>
QUIRE_INLINE F32x16 activate_glu(F32x16 gate, F32x16 up) {
  if constexpr (kind == QUIRE_ACTIVATION_SWIGLU_OAI) {
    constexpr float kLog2E = 1.44269504088896341f;
    const F32x16 limit = splat(7.0f);
    // In this order a NaN stays one.
    const F32x16 g = minimum(limit, gate);
    const F32x16 u = maximum(splat(-7.0f), minimum(limit, up));
    return (u + 1.0f) * (g / (1.0f + exp2_of(g * (-1.702f * kLog2E))));
  }
  return activate<kind>(gate) * up;
}

// Calls f with the activation as a constant.
template <int kind = 0, class F>
QUIRE_INLINE void with_activation(int32_t wanted, const F& f) {
  if constexpr (kind < QUIRE_ACTIVATION_COUNT) {
    if (wanted != kind) return with_activation<kind + 1>(wanted, f);
    f(std::integral_constant<Activation, static_cast<Activation>(kind)>());
  }
}

}  // namespace quire::gemm

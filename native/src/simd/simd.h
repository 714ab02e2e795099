// What linear/, ops/ and attention/ do with sixteen numbers at a time outside their inner loops.
//
// A function here performs the same operations on every lane, which is what keeps results
// independent of neighbours, and reductions have one order on every tier. The compiler may not
// contract a * b + c (-ffp-contract=off): where a fused operation is wanted, `fma` says so.
#pragma once

#include "simd/lanes.h"

namespace quire::gemm {

QUIRE_INLINE U32x16 bits(F32x16 v) { return as<U32x16>(v); }

// sum + a * b in one register, rounded once where the machine can.
QUIRE_INLINE F32Part fused(F32Part sum, F32Part a, F32Part b) {
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

// a * b + c likewise.
QUIRE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return lanewise(fused, c, a, b); }

// Lane by lane: a < b ? yes : no.
QUIRE_INLINE F32x16 if_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return lanewise([](auto x, auto y, auto p, auto q) { return x < y ? p : q; }, a, b, yes, no);
}
QUIRE_INLINE F32x16 if_nan(F32x16 a, F32x16 yes, F32x16 no) {
  return lanewise([](auto x, auto p, auto q) { return x != x ? p : q; }, a, yes, no);
}

// The second where either is a NaN, as the machines' own instructions have it.
QUIRE_INLINE F32x16 minimum(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return lanewise([](F32Part x, F32Part y) -> F32Part { return _mm256_min_ps(x, y); }, a, b);
#else
  return if_less(a, b, a, b);
#endif
}
QUIRE_INLINE F32x16 maximum(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return lanewise([](F32Part x, F32Part y) -> F32Part { return _mm256_max_ps(x, y); }, a, b);
#else
  return if_less(b, a, a, b);
#endif
}

// `mask` has all bits of a lane set, or none.
QUIRE_INLINE F32x16 select(I32x16 mask, F32x16 yes, F32x16 no) {
  return as<F32x16>((mask & as<I32x16>(yes)) | (~mask & as<I32x16>(no)));
}

// The first n lanes of v, and `rest` in the others.
QUIRE_INLINE F32x16 first_lanes(F32x16 v, int64_t n, float rest) {
  return n >= kLanes ? v : select(lane_numbers() < static_cast<int32_t>(n), v, splat(rest));
}

QUIRE_INLINE F32x16 absolute(F32x16 v) { return as<F32x16>(bits(v) & 0x7fffffffu); }

// Nearest whole number for |x| < 2^22, ties to even: adding 1.5 * 2^23 leaves no bits below one.
QUIRE_INLINE F32x16 round_whole(F32x16 x) {
#if defined(__AVX512F__)
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
#else
  return (x + 12582912.0f) - 12582912.0f;
#endif
}

// The same as integers.
QUIRE_INLINE I32x16 nearest(F32x16 x) {
#if defined(__AVX512F__)
  return (I32x16)_mm512_cvtps_epi32(x);
#elif defined(__AVX2__)
  return lanewise([](F32Part part) { return (I32Part)_mm256_cvtps_epi32(part); }, x);
#elif defined(__ARM_NEON)
  return lanewise([](F32Part part) -> I32Part { return vcvtnq_s32_f32(part); }, x);
#else
  return convert<I32x16>(round_whole(x));
#endif
}

// Sixteen halves of words as words. gcc 12 widens halves of registers and puts them together.
QUIRE_INLINE U32x16 widen(U16x16 v) {
#if defined(__AVX512F__)
  return (U32x16)_mm512_cvtepu16_epi32((__m256i)v);
#elif defined(__AVX2__)
  return lanewise([](U16Part part) { return (U32Part)_mm256_cvtepu16_epi32((__m128i)part); }, v);
#else
  return convert<U32x16>(v);
#endif
}

QUIRE_INLINE F32x16 bf16_to_f32(U16x16 v) { return as<F32x16>(widen(v) << 16); }

// The low halves of sixteen words.
QUIRE_INLINE U16x16 narrow(I32x16 v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i both = _mm256_packus_epi32((__m256i)v.low, (__m256i)v.high);
  const __m256i in_order = _mm256_permute4x64_epi64(both, 0xd8);
  return {(U16Part)_mm256_castsi256_si128(in_order),
          (U16Part)_mm256_extracti128_si256(in_order, 1)};
#else
  return convert<U16x16>(v);
#endif
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
QUIRE_INLINE U16x16 f32_to_bf16(F32x16 v) {
#if defined(__AVX512BF16__)
  // The instruction also flushes subnormals, as the bfloat16 products do.
  return (U16x16)_mm512_cvtneps_pbh((__m512)v);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return lanewise([](F32Part part) { return (U16Part)vcvt_bf16_f32(part); }, v);
#else
  const auto rounded = [](I32Part u) {
    const I32Part high = (u >> 16) & 0xffff;
    const I32Part nearest = ((u + 0x7fff + (high & 1)) >> 16) & 0xffff;
    return (u & 0x7fffffff) > 0x7f800000 ? high | 0x40 : nearest;
  };
  return narrow(lanewise(rounded, as<I32x16>(v)));
#endif
}

typedef int8_t I8x16 __attribute__((vector_size(16)));

// Whole numbers from -128 to 127, a signed byte each.
QUIRE_INLINE I8x16 bytes_of(I32x16 v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Packing goes by halves of a register: words 0-3, 8-11 and 4-7, 12-15 come to lie side by side.
  const __m256i words = _mm256_packs_epi32((__m256i)v.low, (__m256i)v.high);
  const __m128i first = _mm256_castsi256_si128(words);
  const __m128i second = _mm256_extracti128_si256(words, 1);
  const __m128i bytes = _mm_packs_epi16(first, second);
  return (I8x16)_mm_shuffle_epi32(bytes, 0xd8);
#elif defined(__ARM_NEON)
  const auto halves = [](auto pair) {
    return vmovn_s16(vcombine_s16(vmovn_s32(pair.low), vmovn_s32(pair.high)));
  };
  return vcombine_s8(halves(v.low), halves(v.high));
#else
  I8x16 bytes;
  store(&bytes, convert<LanesOf<int8_t, kLanes>::Type>(v));
  return bytes;
#endif
}

// Whole numbers from 0 to 255, an unsigned byte each.
QUIRE_INLINE I8x16 unsigned_bytes_of(I32x16 v) {
#if defined(__AVX512F__)
  return (I8x16)_mm512_cvtepi32_epi8((__m512i)v);
#else
  return bytes_of(v - 128) ^ static_cast<int8_t>(-128);
#endif
}

// Four vectors of whole numbers from -128 to 127 as 64 signed bytes with `flip` applied to each,
// written by whole registers: what reads registers back waits for smaller stores to reach the
// cache.
QUIRE_INLINE void store_bytes(void* out, const I32x16 (&v)[4], int8_t flip = 0) {
#if defined(__AVX512F__)
  // Packing goes by quarters of a register: each has four words of every vector.
  const __m512i words[2] = {_mm512_packs_epi32((__m512i)v[0], (__m512i)v[1]),
                            _mm512_packs_epi32((__m512i)v[2], (__m512i)v[3])};
  const __m512i bytes = _mm512_packs_epi16(words[0], words[1]);
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i sorted = _mm512_permutexvar_epi32(order, bytes);
  _mm512_storeu_si512(out, _mm512_xor_si512(sorted, _mm512_set1_epi8(flip)));
#elif defined(__AVX2__)
  const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
  for (int i = 0; i < 4; i += 2) {
    const __m256i words[2] = {_mm256_packs_epi32((__m256i)v[i].low, (__m256i)v[i].high),
                              _mm256_packs_epi32((__m256i)v[i + 1].low, (__m256i)v[i + 1].high)};
    const __m256i bytes = _mm256_packs_epi16(words[0], words[1]);
    const __m256i sorted = _mm256_permutevar8x32_epi32(bytes, order);
    _mm256_storeu_si256(static_cast<__m256i*>(out) + i / 2,
                        _mm256_xor_si256(sorted, _mm256_set1_epi8(flip)));
  }
#else
  for (int i = 0; i < 4; ++i) store(static_cast<char*>(out) + i * kLanes, bytes_of(v[i]) ^ flip);
#endif
}

// The same of whole numbers from 0 to 255, unsigned.
QUIRE_INLINE void store_unsigned_bytes(void* out, const I32x16 (&v)[4]) {
#if defined(__AVX512F__)
  const __m512i words[2] = {_mm512_packus_epi32((__m512i)v[0], (__m512i)v[1]),
                            _mm512_packus_epi32((__m512i)v[2], (__m512i)v[3])};
  const __m512i bytes = _mm512_packus_epi16(words[0], words[1]);
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, bytes));
#else
  const I32x16 lowered[4] = {v[0] - 128, v[1] - 128, v[2] - 128, v[3] - 128};
  store_bytes(out, lowered, -128);
#endif
}

typedef float F32x8 __attribute__((vector_size(32)));
typedef float F32x4 __attribute__((vector_size(16)));

// Lanes i of the result are f(lane i, lane i + half), down to one: the same tree on every tier.
template <class F>
QUIRE_INLINE float reduce_lanes(F32x4 four, F f) {
  const F32x4 two = f(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  const F32x4 one = f(two, __builtin_shufflevector(two, two, 1, 0, 3, 2));
  return one[0];
}
template <class F>
QUIRE_INLINE float reduce_lanes(F32x8 v, F f) {
  return reduce_lanes(f(__builtin_shufflevector(v, v, 0, 1, 2, 3),  //
                        __builtin_shufflevector(v, v, 4, 5, 6, 7)),
                      f);
}
template <class F>
QUIRE_INLINE float reduce_lanes(F32x16 v, F f) {
#if defined(__AVX512F__)
  return reduce_lanes(f(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                        __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                      f);
#elif defined(__AVX2__)
  return reduce_lanes(f(v.low, v.high), f);
#else
  return reduce_lanes(f(f(v.low.low, v.high.low), f(v.low.high, v.high.high)), f);
#endif
}

QUIRE_INLINE float sum_lanes(F32x16 v) {
  return reduce_lanes(v, [](auto a, auto b) { return a + b; });
}

QUIRE_INLINE float max_lanes(F32x16 v) {
  return reduce_lanes(v, [](auto a, auto b) { return a > b ? a : b; });
}

// How large numbers are, for the scale that makes them integers.
class Extent {
 public:
  QUIRE_INLINE void add(F32x16 v) { largest_ = lanewise(Larger{}, absolute(v), largest_); }
  // The largest magnitude among the numbers.
  QUIRE_INLINE float top() const { return reduce_lanes(largest_, Larger{}); }
  // NaN if a NaN or an infinity was among them, otherwise 0.
  QUIRE_INLINE float bad() const { return top() * 0.0f; }

  // The tops of four.
  static QUIRE_INLINE F32x4 tops(const Extent (&e)[4]) {
#if defined(__AVX512F__)
    // Halves of two registers side by side, then quarters of all four.
    const auto halves = [](F32x16 a, F32x16 b) {
      const __m512i low = _mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0x44);
      return _mm512_max_epi32(low, _mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0xee));
    };
    const __m512i ab = halves(e[0].largest_, e[1].largest_);
    const __m512i cd = halves(e[2].largest_, e[3].largest_);
    __m512i all =
        _mm512_max_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
    all = _mm512_max_epi32(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
    all = _mm512_max_epi32(all, _mm512_shuffle_epi32(all, _MM_PERM_CDAB));
    const __m512i firsts = _mm512_set_epi32(12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0);
    return (F32x4)_mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, all));
#else
    return F32x4{e[0].top(), e[1].top(), e[2].top(), e[3].top()};
#endif
  }

 private:
  // Bits of numbers without a sign have the order of the numbers, with NaN above infinity.
  struct Larger {
    template <class V>
    QUIRE_INLINE V operator()(V a, V b) const {
#if defined(__AVX512F__)
      if constexpr (sizeof(V) == 64) return (V)_mm512_max_epi32((__m512i)a, (__m512i)b);
#endif
#if defined(__AVX2__)
      if constexpr (sizeof(V) == 32) return (V)_mm256_max_epi32((__m256i)a, (__m256i)b);
      if constexpr (sizeof(V) == 16) return (V)_mm_max_epi32((__m128i)a, (__m128i)b);
#endif
      typedef int32_t Bits __attribute__((vector_size(sizeof(V))));
      return (Bits)a > (Bits)b ? a : b;
    }
  };

  F32x16 largest_ = {};
};

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

// Sixteen floats at a time, on any machine.
//
// Written with the compiler's vector extension: one source gives zmm, ymm pairs, xmm or NEON quads.
// Used by everything in linear/ that is not an inner loop. A function here performs the same
// operations on every lane, which is what keeps results independent of neighbours.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
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

// Subtracting zero is the one spelling that compilers reduce to a plain broadcast.
QUIRE_INLINE F32x16 splat(float x) { return x - F32x16{}; }
QUIRE_INLINE U32x16 bits(F32x16 v) { return (U32x16)v; }

// Comparisons and changes of width go register by register: gcc lowers them lane by lane on vectors
// longer than the machine's own (20 times the instructions).
#if defined(__AVX512F__)
constexpr int kPartLanes = 16;
#elif defined(__AVX2__)
constexpr int kPartLanes = 8;
#else
constexpr int kPartLanes = 4;
#endif
constexpr int kParts = kLanes / kPartLanes;
typedef float F32Part __attribute__((vector_size(kPartLanes * 4)));
typedef int32_t I32Part __attribute__((vector_size(kPartLanes * 4)));
typedef uint16_t U16Part __attribute__((vector_size(kPartLanes * 2)));

template <class Part>
struct Parts {
  Part part[kParts];
};

template <class Part, class V>
QUIRE_INLINE Parts<Part> split(V v) {
  return __builtin_bit_cast(Parts<Part>, v);
}

// Lane by lane: condition(a, b) ? yes : no.
template <class Condition>
QUIRE_INLINE F32x16 choose(F32x16 a, F32x16 b, F32x16 yes, F32x16 no, Condition condition) {
  const auto x = split<F32Part>(a), y = split<F32Part>(b);
  auto result = split<F32Part>(no);
  const auto other = split<F32Part>(yes);
  for (int i = 0; i < kParts; ++i) {
    result.part[i] = condition(x.part[i], y.part[i]) ? other.part[i] : result.part[i];
  }
  return __builtin_bit_cast(F32x16, result);
}

QUIRE_INLINE F32x16 if_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return choose(a, b, yes, no, [](F32Part x, F32Part y) { return x < y; });
}
QUIRE_INLINE F32x16 if_nan(F32x16 a, F32x16 yes, F32x16 no) {
  return choose(a, a, yes, no, [](F32Part x, F32Part y) { return x != y; });
}
QUIRE_INLINE F32x16 minimum(F32x16 a, F32x16 b) { return if_less(a, b, a, b); }
QUIRE_INLINE F32x16 maximum(F32x16 a, F32x16 b) { return if_less(b, a, a, b); }

QUIRE_INLINE F32x16 select(I32x16 mask, F32x16 yes, F32x16 no) {
  return (F32x16)((mask & (I32x16)yes) | (~mask & (I32x16)no));
}

QUIRE_INLINE F32x16 absolute(F32x16 v) { return (F32x16)(bits(v) & 0x7fffffffu); }

// Nearest whole number for |x| < 2^22: adding 1.5 * 2^23 leaves no bits below one.
QUIRE_INLINE F32x16 round_whole(F32x16 x) { return (x + 12582912.0f) - 12582912.0f; }

QUIRE_INLINE F32x16 bf16_to_f32(U16x16 v) {
  const auto narrow = split<U16Part>(v);
  Parts<I32Part> wide;
  for (int i = 0; i < kParts; ++i) {
    wide.part[i] = __builtin_convertvector(narrow.part[i], I32Part) << 16;
  }
  return __builtin_bit_cast(F32x16, wide);
}

// The low halves of sixteen words.
QUIRE_INLINE U16x16 narrow(Parts<I32Part> v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i both = _mm256_packus_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
  return (U16x16)_mm256_permute4x64_epi64(both, 0xd8);
#else
  Parts<U16Part> result;
  for (int i = 0; i < kParts; ++i) result.part[i] = __builtin_convertvector(v.part[i], U16Part);
  return __builtin_bit_cast(U16x16, result);
#endif
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
QUIRE_INLINE U16x16 f32_to_bf16(F32x16 v) {
#if defined(__AVX512BF16__)
  // The instruction also flushes subnormals, as the bfloat16 products do.
  return (U16x16)_mm512_cvtneps_pbh((__m512)v);
#else
  auto word = split<I32Part>(v);
  for (int i = 0; i < kParts; ++i) {
    const I32Part u = word.part[i];
    const I32Part high = (u >> 16) & 0xffff;
    const I32Part rounded = ((u + 0x7fff + (high & 1)) >> 16) & 0xffff;
    word.part[i] = (u & 0x7fffffff) > 0x7f800000 ? high | 0x40 : rounded;
  }
  return narrow(word);
#endif
}

// The low byte of each lane.
QUIRE_INLINE void store_bytes(int8_t* out, I32x16 v) {
#if defined(__AVX512F__)
  typedef int8_t I8x16 __attribute__((vector_size(16)));
  store(out, __builtin_convertvector(v, I8x16));
#else
  int32_t words[kLanes];
  store(words, v);
  for (int i = 0; i < kLanes; ++i) out[i] = static_cast<int8_t>(words[i]);
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

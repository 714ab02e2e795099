// Weights of float16 in a strip: as those of bfloat16, [k / 2][32][2], but within eight columns the
// first numbers of all pairs come before the second ones, as the instructions that widen them read.
#pragma once

#include <cstring>

#include "simd/simd.h"

namespace quire::gemm {

constexpr int64_t kF16Columns = 8;
constexpr int64_t kF16Bytes = kF16Columns * 4;  // of eight columns in a line

// Where number `k` of a column lies in its strip.
inline int64_t f16_place(int64_t column, int64_t k) {
  constexpr int64_t kLineBytes = 128;
  return k / 2 * kLineBytes + column / kF16Columns * kF16Bytes + k % 2 * (kF16Bytes / 2) +
         column % kF16Columns * 2;
}

// The first (`unit` 0) or second numbers of the columns of one register, which begin at `words`.
QUIRE_INLINE F32Part widen_f16(const uint8_t* words, int unit) {
#if defined(__AVX512F__)
  const uint8_t* first = words + unit * kF16Bytes / 2;
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load<__m128i>(first)),
                                               load<__m128i>(first + kF16Bytes), 1);
  return (F32Part)_mm512_cvtph_ps(both);
#elif defined(__AVX2__)
  return (F32Part)_mm256_cvtph_ps(load<__m128i>(words + unit * kF16Bytes / 2));
#else
  // A register has half of the eight columns. Strips are aligned.
  const auto within = static_cast<int64_t>(reinterpret_cast<uintptr_t>(words) % kF16Bytes);
  const uint8_t* first = words - within / 2 + unit * kF16Bytes / 2;
#if defined(__ARM_NEON)
  return (F32Part)vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(first)));
#else
  F32Part out;
  for (int i = 0; i < kPartLanes; ++i) {
    uint16_t half;
    std::memcpy(&half, first + 2 * i, sizeof half);
    out[i] = f16_to_f32(half);
  }
  return out;
#endif
#endif
}

}  // namespace quire::gemm

// Groups of codes that stand for floats, written out as the lines that dense products read.
//
// A line is [32 columns][4 bytes]: a float32 of one K, or bfloat16s of two. What is written is
// exactly what the codes stand for; scales come later. `line` makes one of the lines of a step, in
// as many columns as a register has words. kSideBySide: see float_direct.h.
#pragma once

#include "linear/grouped/grouped_weights.h"
#include "simd/narrow.h"

namespace quire::gemm {

// E4M3 as lines of float32.
struct E4m3Floats {
  static constexpr int kTable = QUIRE_TABLE_E4M3;
  static constexpr int kLineDepth = 1;
  static constexpr int kSideBySide = 1;
  explicit E4m3Floats(int32_t) {}

  QUIRE_INLINE Vector line(BitVector words, int k) const {
    return e4m3_of_words(words << (24 - 8 * kPairedBytes[k]));
  }
};

#if defined(__AVX512BF16__)
// The same as lines of bfloat16.
struct E4m3Halves {
  static constexpr int kTable = QUIRE_TABLE_E4M3;
  static constexpr int kLineDepth = 2;
  static constexpr int kSideBySide = 1;
  explicit E4m3Halves(int32_t) {}

  QUIRE_INLINE BitVector line(BitVector words, int pair) const {
    const auto codes = (__m512i)words;
    return (BitVector)halves(pair == 0 ? _mm512_slli_epi16(codes, 8) : codes);
  }

 private:
  // Of the upper byte of each 16 bits. Where the exponent is 0 the mantissa says which number it
  // is; elsewhere the bias is another, 127 for 7.
  QUIRE_INLINE __m512i halves(__m512i codes) const {
    const __m512i magnitude =
        _mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi16(0x07f0));
    const __m512i normal = _mm512_add_epi16(magnitude, _mm512_set1_epi16(120 << 7));
    const __mmask32 is_small = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x7800));
    const __m512i size =
        _mm512_mask_permutexvar_epi16(normal, is_small, _mm512_srli_epi16(codes, 8), small());
    // size | (codes & sign)
    return _mm512_ternarylogic_epi64(size, codes, _mm512_set1_epi16(-0x8000), 0xf8);
  }

  // The first eight are 0 to 7 times 2^-9.
  static QUIRE_INLINE __m512i small() {
    return _mm512_castsi128_si512(
        _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  }
};
#endif

// A table of 16 numbers as lines of float32.
struct TableFloats {
  static constexpr int kTable = QUIRE_TABLE_NF4;
  static constexpr int kLineDepth = 1;
  static constexpr int kSideBySide = 2;

  explicit TableFloats(int32_t table) {
    for (int i = 0; i < 16; ++i) numbers_[i] = float_number(table, i);
  }

  // Each byte has the codes of K and of K + 4, the first in its lower half.
  QUIRE_INLINE Vector line(BitVector words, int k) const {
    return number(words >> (k % 4 * 8 + k / 4 * 4));
  }

 private:
  // Of the lowest 4 bits of each word.
  QUIRE_INLINE Vector number(BitVector words) const {
#if defined(__AVX512F__)
    return (Vector)_mm512_permutexvar_ps((__m512i)words, _mm512_loadu_ps(numbers_));
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers_), (__m256i)words);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers_ + 8), (__m256i)words);
    return (Vector)_mm256_blendv_ps(low, high, (__m256)(words << 28));
#else
    return look_up(numbers_, words);
#endif
  }

  float numbers_[16];
};

template <class Codes>
constexpr CodeStep kStepOf{kTables[Codes::kTable].bits};

// Lines that a step becomes.
template <class Codes>
constexpr int kLinesOf = static_cast<int>(kStepOf<Codes>.depth) / Codes::kLineDepth;

// Writes `depth` of K of a strip as lines.
template <class Codes>
QUIRE_INLINE void write_lines(const Codes& codes, const uint8_t* from, int64_t depth,
                              uint8_t* lines) {
  constexpr int kLines = kLinesOf<Codes>;
  for (int64_t k = 0; k < depth; k += kStepOf<Codes>.depth) {
    for (int64_t c = 0; c < kLineBytes; c += sizeof(BitVector)) {
      const auto words = load<BitVector>(from + c);
#pragma GCC unroll 8
      for (int i = 0; i < kLines; ++i) store(lines + i * kLineBytes + c, codes.line(words, i));
    }
    from += kLineBytes;
    lines += kLines * kLineBytes;
  }
}

}  // namespace quire::gemm

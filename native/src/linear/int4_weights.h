// 4-bit weights: how they lie in a strip, and how they become the signed bytes of int8 products.
//
// In each group of 32 along K a column has a whole step from 1 to 16 and an offset from 0 to 127:
// the 4 bits u stand for the integer u * step - offset, which packing keeps within [-127, 127]. A
// group thus becomes int8 without rounding, so that every kernel, whatever it multiplies when,
// arrives at the same sums.
//
// A strip is a row of slabs, each 64 of K by 32 columns: first the offsets of its two groups,
// [2][32] bytes, then their steps less one, [32] bytes with that of the first group in the lower
// half, then their numbers, [8 lines][32 columns][4 bytes], a line being 8 of K: the lower halves
// of its bytes are the first four, the upper halves the others.
#pragma once

#include "simd/narrow.h"
#include "simd/simd.h"

namespace quire::gemm {

constexpr int64_t kInt4Group = 32;
constexpr int64_t kSlabDepth = 64;
constexpr int64_t kSlabGroups = kSlabDepth / kInt4Group;
constexpr int64_t kSlabColumns = 32;
constexpr int64_t kInt4LineDepth = 8;
constexpr int64_t kInt4LineBytes = kSlabColumns * kInt4LineDepth / 2;
constexpr int64_t kGroupLines = kInt4Group / kInt4LineDepth;
constexpr int64_t kStepsAt = kSlabGroups * kSlabColumns;
constexpr int64_t kCodeBytes = kStepsAt + kSlabColumns;
constexpr int64_t kSlabBytes = kCodeBytes + kSlabColumns * kSlabDepth / 2;
constexpr int64_t kExpandedSlabBytes = kSlabColumns * kSlabDepth;

// Where number `k` of a column lies in its strip.
struct Int4Place {
  int64_t offset;
  int64_t step;
  int step_shift;
  int64_t byte;
  int shift;

  Int4Place(int64_t column, int64_t k) {
    const int64_t slab = k / kSlabDepth * kSlabBytes;
    const int64_t group = k % kSlabDepth / kInt4Group;
    offset = slab + group * kSlabColumns + column;
    step = slab + kStepsAt + column;
    step_shift = static_cast<int>(4 * group);
    byte =
        slab + kCodeBytes + k % kSlabDepth / kInt4LineDepth * kInt4LineBytes + column * 4 + k % 4;
    shift = k % kInt4LineDepth < 4 ? 0 : 4;
  }
};

inline int32_t int4_weight(const uint8_t* strip, int64_t column, int64_t k) {
  const Int4Place at(column, k);
  const int32_t step = (strip[at.step] >> at.step_shift & 15) + 1;
  return (strip[at.byte] >> at.shift & 15) * step - strip[at.offset];
}

// As many bytes as a register has words, each in a word of its own. gcc 12 does it byte by byte.
typedef uint32_t CodeWords __attribute__((vector_size(kPartLanes * 4)));
QUIRE_INLINE CodeWords widen_codes(const uint8_t* codes) {
#if defined(__AVX512F__)
  return (CodeWords)_mm512_cvtepu8_epi32(load<__m128i>(codes));
#elif defined(__AVX2__)
  return (CodeWords)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
#else
  return widen_some_bytes(codes);
#endif
}

// The steps of a group of columns, one in each word.
QUIRE_INLINE CodeWords steps_of(CodeWords codes, int64_t group) {
  return ((codes >> static_cast<uint32_t>(4 * group)) & 15u) + 1u;
}

// One group of as many columns as a vector has words. A product of 4 bits and a step fits in a
// byte, so multiplying words of 16 bits multiplies both their bytes.
QUIRE_INLINE void expand_columns(CodeWords steps, CodeWords offsets, const uint8_t* lines,
                                 uint8_t* out) {
  typedef uint8_t Bytes __attribute__((vector_size(kPartLanes * 4)));
  typedef uint16_t Pairs __attribute__((vector_size(kPartLanes * 4)));
  using Words = CodeWords;
  const Pairs step = (Pairs)(steps * 0x00010001u);
  const Bytes shift = (Bytes)(offsets * 0x01010101u);
#pragma GCC unroll 4
  for (int64_t i = 0; i < kGroupLines; ++i) {
    const Words line = load<Words>(lines + i * kInt4LineBytes);
    const Pairs first = (Pairs)(line & 0x0f0f0f0fu);
    const Pairs second = (Pairs)((line >> 4) & 0x0f0f0f0fu);
    store(out + 2 * i * kInt4LineBytes, (Bytes)(first * step) - shift);
    store(out + (2 * i + 1) * kInt4LineBytes, (Bytes)(second * step) - shift);
  }
}

// One slab as the lines of an int8 strip, [64 / 4][32 columns][4].
QUIRE_INLINE void expand_slab(const uint8_t* slab, uint8_t* out) {
  for (int64_t group = 0; group < kSlabGroups; ++group) {
    const uint8_t* offsets = slab + group * kSlabColumns;
    const uint8_t* lines = slab + kCodeBytes + group * kGroupLines * kInt4LineBytes;
    uint8_t* expanded = out + group * kExpandedSlabBytes / kSlabGroups;
    for (int64_t c = 0; c < kSlabColumns; c += kPartLanes) {
      const CodeWords steps = steps_of(widen_codes(slab + kStepsAt + c), group);
      expand_columns(steps, widen_codes(offsets + c), lines + c * 4, expanded + c * 4);
    }
  }
}

inline void expand_slabs(const uint8_t* slabs, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    expand_slab(slabs + i * kSlabBytes, out + i * kExpandedSlabBytes);
  }
}

}  // namespace quire::gemm

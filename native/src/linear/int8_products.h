// int8 products on vector registers: exact integer sums, scaled when K is done.
//
// Integer sums have no order, so every tier gives the same integers whatever its instructions.
#pragma once

#include "linear/int4_weights.h"
#include "linear/vector_products.h"
#include "simd/dots.h"

namespace quire::gemm {

typedef int32_t IntVector __attribute__((vector_size(kVectorLanes * 4)));

// Without an instruction that sums four products of bytes in 32 bits, AVX2 sums two in 16 bits.
// Small weights do not overflow them.
#if defined(__AVX2__) && !defined(QUIRE_DOTS_OF_BYTES)
#define QUIRE_PAIRS_OF_BYTES
// So few rows, of 16 bits, meet 4-bit weights in this way; more meet them as int8.
constexpr int64_t kFewInt4Rows = 2;

// Sums of two products of bytes, unsigned ones in `w`, in 16 bits; or of two of words in 32 bits.
// gcc would add products to each other first, or move sums to other registers, so that both
// instructions are written out.
template <bool kBytes>
struct Pairs {
  static QUIRE_INLINE IntVector multiply(IntVector x, IntVector w) {
    if constexpr (kBytes) return (IntVector)_mm256_maddubs_epi16((__m256i)w, (__m256i)x);
    return (IntVector)_mm256_madd_epi16((__m256i)w, (__m256i)x);
  }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    IntVector found;
    if constexpr (kBytes) {
      asm("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(found) : "x"(x), "x"(w));
    } else {
      asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(found) : "x"(x), "x"(w));
    }
    return sum;
  }
};
#else
constexpr int64_t kFewInt4Rows = 0;
#endif

template <int kPlanes_>
struct QuantisedX {
  static constexpr int kPlanes = kPlanes_;  // of a row, each multiplied on its own
  static constexpr int kSums = kPlanes_;    // lines of sums of a row
  static constexpr int kBytes = kPlanes_;   // of an activation
  static constexpr bool kQuantised = true;
#if defined(QUIRE_TILES_OF_BYTES)
  static constexpr int kStepsTogether = 2;
#else
  static constexpr int kStepsTogether = 1;
#endif
  static constexpr int kDepth = 4;
  using Sum = IntVector;
  using Weight = IntVector;
  using Broadcast = IntVector;

  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) {
    int32_t word;
    std::memcpy(&word, unit, sizeof word);
    return word - IntVector{};
  }
};

#if defined(QUIRE_PAIRS_OF_BYTES)
// Adds to the sums of two vectors of columns what kLines lines of a strip give with units of kRows
// rows, [line][row]; or begins these sums.
template <bool kBytes, int kLines, int kRows>
QUIRE_INLINE void add_lines(const uint32_t* x, const uint8_t* lines, bool is_first,
                            IntVector (&sums)[kRows][2]) {
#pragma GCC unroll 8
  for (int i = 0; i < kLines; ++i) {
    const uint8_t* line = lines + i * kStripColumns * 4;
    const IntVector w[] = {load<IntVector>(line), load<IntVector>(line + sizeof(IntVector))};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto unit = QuantisedX<1>::broadcast(x + i * kRows + r);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        sums[r][v] = i == 0 && is_first ? Pairs<kBytes>::multiply(unit, w[v])
                                        : Pairs<kBytes>::multiply_add(sums[r][v], unit, w[v]);
      }
    }
  }
}
#endif

#if defined(QUIRE_DOTS_OF_BYTES)
// Where the instruction multiplies unsigned by signed bytes, x is shifted by 128, and 128 times the
// sum of a column's weights is taken off at the end.
template <int kPlanes>
struct Int8Product : QuantisedX<kPlanes> {
  static constexpr bool kUnsignedX = !kSignedDots;
  static constexpr int kUnits = 1;
  static constexpr int kRowsOfTwoVectors = 0;  // of x that meet 4-bit weights
  // One row is read as fast as memory gives it, and prefetches only slow that down.
  static constexpr bool kPrefetchesForOne = false;
  static QUIRE_INLINE IntVector weight(const uint8_t* line, int /*unit*/) {
    return load<IntVector>(line);
  }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return dot_bytes(sum, x, w);
  }
  static QUIRE_INLINE IntVector add_scaled(IntVector sum, IntVector dot, IntVector step) {
    return sum + dot * step;
  }
  // What the sums of a group of 4-bit weights are multiplied by, from the step of each column.
  static QUIRE_INLINE IntVector step_of(CodeWords steps) { return (IntVector)steps; }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kSegment]) {
    // Written in place: reading small stores back as one large load would stall.
    quantise_segment<kPlanes, kUnsignedX>(x, row, k, count, inverse, reinterpret_cast<int8_t*>(out),
                                          sizeof *out);
  }
};
#else
// Weights are multiplied as 16 bits, and so activations of 16 bits can be.
#define QUIRE_PAIRS_OF_WORDS

// Bytes are widened to 16 bits in place: the even ones of a word by two shifts, the odd ones by
// one; x comes as the matching pairs of 16 bits.
template <int kPlanes>
struct Int8Product : QuantisedX<kPlanes> {
  static constexpr bool kUnsignedX = false;
  static constexpr int kUnits = 2;
  static QUIRE_INLINE IntVector weight(const uint8_t* line, int unit) {
    typedef int16_t Pairs __attribute__((vector_size(sizeof(IntVector))));
    const Pairs bytes = load<Pairs>(line);
    return (IntVector)((unit == 0 ? bytes << 8 : bytes) >> 8);
  }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    sum = dot_words(sum, w, x);
#if defined(__AVX2__)
    // Without it gcc delays the sums of both units, which needs too many registers.
    asm("" : "+x"(sum));
#endif
    return sum;
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kSegment]) {
    int8_t planes[kPlanes][kSegment];
    quantise_segment<kPlanes>(x, row, k, count, inverse, planes[0], kSegment);
    const auto pair = [](int8_t low, int8_t high) {
      return static_cast<uint32_t>(static_cast<uint16_t>(low)) |
             static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
    };
    for (int p = 0; p < kPlanes; ++p) {
      for (int64_t i = 0; i < kSegment; i += 4) {
        const int8_t* quad = planes[p] + i;
        out[p][i / 2] = pair(quad[0], quad[2]);
        out[p][i / 2 + 1] = pair(quad[1], quad[3]);
      }
    }
  }
};

// Activations of 16 bits as they are, which takes half the multiplications of two planes. A sum of
// 32 bits holds kMostSteps; sums of whole rows are in two lines, high * 65536 + low.
struct WordProduct : QuantisedX<1> {
  static constexpr int kSums = 2;
  static constexpr int kBytes = 2;
  static constexpr bool kUnsignedX = false;
  static constexpr int kUnits = 2;
  static constexpr int64_t kMostSteps = 128;
  static_assert(kMostSteps * kDepth * 128 * int64_t{127 * 256} < int64_t{1} << 31);

  static QUIRE_INLINE IntVector weight(const uint8_t* line, int unit) {
    return Int8Product<1>::weight(line, unit);
  }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return Int8Product<1>::multiply_add(sum, x, w);
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kSegment]) {
    int8_t planes[kBytes][kSegment];
    quantise_segment<kBytes>(x, row, k, count, inverse, planes[0], kSegment);
    words_of(planes, out[0]);
  }
  // Two planes as pairs of words: those that meet the even weights of four, and the odd ones.
  static QUIRE_INLINE void words_of(const int8_t (&planes)[kBytes][kSegment], uint32_t* out) {
    const auto word = [&](int64_t i) {
      return static_cast<uint32_t>(static_cast<uint16_t>(planes[0][i] * 256 + planes[1][i]));
    };
    for (int64_t i = 0; i < kSegment; i += 4) {
      out[i / 2] = word(i) | word(i + 2) << 16;
      out[i / 2 + 1] = word(i + 1) | word(i + 3) << 16;
    }
  }
};
#endif

}  // namespace quire::gemm

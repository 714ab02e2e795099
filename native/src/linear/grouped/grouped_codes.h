// Codes of grouped weights as the bytes that products multiply.
#pragma once

#include "linear/grouped/grouped_weights.h"
#include "linear/int4_weights.h"
#include "linear/vector_products.h"
#include "simd/narrow.h"

namespace quire::gemm {

typedef uint8_t CodeBytes __attribute__((vector_size(kVectorLanes * 4)));

// What is taken off numbers that would not fit with a sign, where products take them with one.
constexpr int less_of(int largest) { return kSignedDots && largest > 127 ? 128 : 0; }

// A step of codes as the bytes that are multiplied, `kLargest` at most: kQuads times 4 of K. `line`
// is the first of its lines, from the vector's columns on.
template <int kBits>
struct StepOfCodes {
  static constexpr CodeStep kStep{kBits};
  // Whether 8-bit activations with one scale for each row meet these codes.
  static constexpr bool kOfRows = kBits == 4 || kBits == 8;
  // The groups where blocks of activations have scales: this one alone, or others too.
  static constexpr int kUsualGroup = usual_group(kBits);
  static constexpr bool kOtherGroups = false;
  static constexpr int kLargest = (1 << kBits) - 1;
  static constexpr int kLess = less_of(kLargest);
  static constexpr int kQuads = static_cast<int>(kStep.depth / 4);

  static QUIRE_INLINE CodeWords nibbles(const uint8_t* line, int index) {
    auto words = load<CodeWords>(line + index / 2 * kLineBytes);
#if defined(__AVX512F__)
    asm("" : "+v"(words));  // else gcc reads them again for the other half
#endif
    return (index % 2 == 0 ? words : words >> 4) & 0x0f0f0f0fu;
  }
};

struct PlainCodes : StepOfCodes<4> {
  explicit PlainCodes(const Table&) {}
  QUIRE_INLINE CodeBytes quad(const uint8_t* line, int index) const {
    return (CodeBytes)nibbles(line, index);
  }
};

struct ByteCodes : StepOfCodes<8> {
  explicit ByteCodes(const Table&) {}
  QUIRE_INLINE CodeBytes quad(const uint8_t* line, int /*index*/) const {
    return (CodeBytes)(load<CodeWords>(line) ^ static_cast<uint32_t>(kFlipUnsigned));
  }
};

// Of 5 and 6 bits.
template <int kBits>
struct SplitCodes : StepOfCodes<kBits> {
  using Step = StepOfCodes<kBits>;
  explicit SplitCodes(const Table&) {}
  QUIRE_INLINE CodeBytes quad(const uint8_t* line, int index) const {
    constexpr int kUpper = kBits - 4;
    constexpr uint32_t kMask = kUpper == 1 ? 0x10101010u : 0x30303030u;
    const auto upper = load<CodeWords>(line + Step::kStep.low_lines * kLineBytes);
    const int shift = 4 - kUpper * index;  // to the left
    const CodeWords moved = shift >= 0 ? upper << shift : upper >> -shift;
    return (CodeBytes)(Step::nibbles(line, index) | (moved & kMask));
  }
};

template <int kLargest_>
struct TableCodes : StepOfCodes<4> {
  static constexpr int kLargest = kLargest_;
  static constexpr int kLess = less_of(kLargest);
  static constexpr bool kOfRows = false;
  static constexpr bool kOtherGroups = kLargest == largest_of(QUIRE_TABLE_E2M1);
  explicit TableCodes(const Table& table) {
#if defined(__AVX512BW__)
    numbers_ = (CodeBytes)_mm512_broadcast_i32x4(load<__m128i>(table.numbers));
#elif defined(__AVX2__)
    numbers_ = (CodeBytes)_mm256_broadcastsi128_si256(load<__m128i>(table.numbers));
#else
    for (int64_t i = 0; i < static_cast<int64_t>(sizeof numbers_); ++i) {
      numbers_[i] = static_cast<uint8_t>(table.numbers[i % 16] - kLess);
    }
#endif
  }
  QUIRE_INLINE CodeBytes quad(const uint8_t* line, int index) const {
    const auto codes = (CodeBytes)nibbles(line, index);
#if defined(__AVX512BW__)
    return (CodeBytes)_mm512_shuffle_epi8((__m512i)numbers_, (__m512i)codes);
#elif defined(__AVX2__)
    return (CodeBytes)_mm256_shuffle_epi8((__m256i)numbers_, (__m256i)codes);
#else
    return look_up(numbers_, codes);
#endif
  }

 private:
  CodeBytes numbers_;
};

template <class Codes_>
struct CodesTag {
  using Codes = Codes_;
};

// Calls `use` with the tag of a table's codes.
template <class Use>
decltype(auto) with_codes(int32_t table, Use use) {
  switch (table) {
    case QUIRE_TABLE_U4:
    case QUIRE_TABLE_S4:
      return use(CodesTag<PlainCodes>{});
    case QUIRE_TABLE_S8:
      return use(CodesTag<ByteCodes>{});
    case QUIRE_TABLE_S6:
      return use(CodesTag<SplitCodes<6>>{});
    case QUIRE_TABLE_U5:
    case QUIRE_TABLE_S5:
      return use(CodesTag<SplitCodes<5>>{});
    case QUIRE_TABLE_E2M1:
      return use(CodesTag<TableCodes<largest_of(QUIRE_TABLE_E2M1)>>{});
    default:
      return use(CodesTag<TableCodes<largest_of(QUIRE_TABLE_IQ4)>>{});
  }
}

}  // namespace quire::gemm

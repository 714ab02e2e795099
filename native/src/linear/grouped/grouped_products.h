// The inner loop of grouped products: rows of x with one strip.
#pragma once

#include "linear/grouped/grouped_weights.h"
#include "linear/int4_weights.h"
#include "linear/int8_products.h"

namespace quire::gemm {

typedef uint8_t CodeBytes __attribute__((vector_size(kVectorLanes * 4)));

// Bytes of x with their signs, and numbers of the table without any.
template <int kPlanes_>
struct GroupedProduct : QuantisedX<kPlanes_> {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  static constexpr int kUnits = 1;
  static QUIRE_INLINE IntVector weight(CodeBytes line, int /*unit*/) { return (IntVector)line; }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
#if defined(__AVX512VNNI__)
    return (IntVector)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#else
    return (IntVector)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#endif
  }
  static void units_of(const int8_t (&planes)[kPlanes_][kSegment], uint32_t (*out)[kSegment]) {
    for (int p = 0; p < kPlanes_; ++p) std::memcpy(out[p], planes[p], kSegment);
  }
#else
  static constexpr int kUnits = 2;
  static QUIRE_INLINE IntVector weight(CodeBytes line, int unit) {
    typedef uint16_t Pairs __attribute__((vector_size(sizeof(IntVector))));
    const Pairs bytes = (Pairs)line;
    return (IntVector)(unit == 0 ? bytes & 0xff : bytes >> 8);
  }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return Int8Product<kPlanes_>::multiply_add(sum, x, w);
  }
  static void units_of(const int8_t (&planes)[kPlanes_][kSegment], uint32_t (*out)[kSegment]) {
    const auto pair = [](int8_t low, int8_t high) {
      return static_cast<uint32_t>(static_cast<uint16_t>(low)) |
             static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
    };
    for (int p = 0; p < kPlanes_; ++p) {
      for (int64_t i = 0; i < kSegment; i += 4) {
        const int8_t* quad = planes[p] + i;
        out[p][i / 2] = pair(quad[0], quad[2]);
        out[p][i / 2 + 1] = pair(quad[1], quad[3]);
      }
    }
  }
#endif
};

// A line of codes as the bytes that are multiplied: kQuads times 4 of K.
struct PlainCodes {
  static constexpr int kQuads = 2;
  explicit PlainCodes(const Table&) {}
  QUIRE_INLINE CodeBytes quad(CodeWords line, int index) const {
    return (CodeBytes)((index == 0 ? line : line >> 4) & 0x0f0f0f0fu);
  }
};

struct ByteCodes {
  static constexpr int kQuads = 1;
  explicit ByteCodes(const Table&) {}
  QUIRE_INLINE CodeBytes quad(CodeWords line, int /*index*/) const { return (CodeBytes)line; }
};

struct TableCodes {
  static constexpr int kQuads = 2;
  explicit TableCodes(const Table& table) {
    for (int64_t i = 0; i < static_cast<int64_t>(sizeof numbers_); ++i) {
      numbers_[i] = table.numbers[i % 16];
    }
  }
  QUIRE_INLINE CodeBytes quad(CodeWords line, int index) const {
    const auto codes = (CodeBytes)((index == 0 ? line : line >> 4) & 0x0f0f0f0fu);
#if defined(__AVX512BW__)
    return (CodeBytes)_mm512_shuffle_epi8((__m512i)numbers_, (__m512i)codes);
#elif defined(__AVX2__)
    return (CodeBytes)_mm256_shuffle_epi8((__m256i)numbers_, (__m256i)codes);
#else
    CodeBytes out;
    for (int i = 0; i < static_cast<int>(sizeof out); ++i) out[i] = numbers_[codes[i]];
    return out;
#endif
  }

 private:
  CodeBytes numbers_;
};

struct GroupedArgs {
  const uint32_t* x;       // [step of 4 of K][kUnits][row][plane]
  const uint32_t* totals;  // [16 of K][row], sums of x up to there
  int64_t totals_rows;
  const uint8_t* strip;
  const GroupedStrip* layout;
  float* sums;  // [row][32]
};

// float16s of some columns as float32.
QUIRE_INLINE Vector widen_halves(const uint8_t* at) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtph_ps(load<__m256i>(at));
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtph_ps(load<__m128i>(at));
#else
  Vector out;
  for (int i = 0; i < kVectorLanes; ++i) {
    uint16_t bits;
    std::memcpy(&bits, at + 2 * i, 2);
    out[i] = f16_to_f32(bits);
  }
  return out;
#endif
}

// Signed bytes of some columns as float32.
QUIRE_INLINE Vector widen_bytes(const uint8_t* at) {
  // Each byte in the top of its word, with its sign.
  const auto words = (IntVector)(widen_codes(at) << 24);
  return __builtin_convertvector(words >> 24, Vector);
}

// Scales or minima of a group: those of the columns from `column` on.
struct GroupNumbers {
  const uint8_t* numbers;
  const uint8_t* nests;

  QUIRE_INLINE Vector at(const Grouping& grouping, int64_t group, int64_t column) const {
    const int64_t index = group * kStripColumns + column;
    if (grouping.nested) {
      const int64_t nest = group * grouping.group / kNestDepth * kStripColumns + column;
      return widen_halves(nests + 2 * nest) * widen_bytes(numbers + index);
    }
    if (grouping.half) return widen_halves(numbers + 2 * index);
    return load<Vector>(numbers + 4 * index);
  }
};

// Registers of columns that fit beside so many rows.
constexpr int grouped_vectors(int rows, int most_rows) {
  int vectors = static_cast<int>(kStripColumns) / kVectorLanes;
  while (vectors > 1 && vectors * rows > most_rows) vectors /= 2;
  return vectors;
}

#if defined(__AVX512F__)
constexpr int kGroupedDots = 12;
#elif defined(__AVX2__)
constexpr int kGroupedDots = 6;
#else
constexpr int kGroupedDots = 4;
#endif

template <class Product, class Codes, int kRows>
void grouped_rows(const GroupedArgs& args) {
  constexpr int kPlanes = Product::kPlanes;
  constexpr int kLines = kRows * kPlanes;
  constexpr int kVectors = grouped_vectors(kLines, kGroupedDots);
  constexpr int64_t kLineBytes = kStripColumns * 4;
  constexpr int64_t kAhead = 4096;
  const GroupedStrip& layout = *args.layout;
  const Grouping grouping = layout.grouping;
  const Table& table = kTables[grouping.table];
  const Codes codes(table);
  const int64_t group_lines = grouping.group / (4 * Codes::kQuads);
  const GroupNumbers scales{args.strip, args.strip + layout.scale_nests_at};
  const GroupNumbers minima{args.strip + layout.minima_at, args.strip + layout.minimum_nests_at};
  for (int64_t c = 0; c < kStripColumns; c += kVectors * kVectorLanes) {
    Vector sums[kRows][kVectors] = {};
    const uint32_t* x = args.x;
    const uint8_t* line = args.strip + layout.codes_at + c * 4;
    for (int64_t g = 0; g < layout.groups; ++g) {
      IntVector dots[kLines][kVectors] = {};
      for (int64_t i = 0; i < group_lines; ++i, line += kLineBytes) {
        __builtin_prefetch(line + kAhead);
        if constexpr (kVectors * kVectorLanes * 4 > 64) __builtin_prefetch(line + kAhead + 64);
        CodeWords words[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          words[v] = load<CodeWords>(line + v * static_cast<int64_t>(sizeof(CodeWords)));
        }
#pragma GCC unroll 2
        for (int q = 0; q < Codes::kQuads; ++q) {
          CodeBytes quads[kVectors];
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) quads[v] = codes.quad(words[v], q);
#pragma GCC unroll 2
          for (int u = 0; u < Product::kUnits; ++u, x += kLines) {
#pragma GCC unroll 12
            for (int r = 0; r < kLines; ++r) {
              const auto unit = Product::broadcast(x + r);
#pragma GCC unroll 8
              for (int v = 0; v < kVectors; ++v) {
                dots[r][v] = Product::multiply_add(dots[r][v], unit, Product::weight(quads[v], u));
              }
            }
          }
        }
      }
      const uint32_t* before = args.totals + g * (grouping.group / 16) * args.totals_rows;
      const uint32_t* after = before + grouping.group / 16 * args.totals_rows;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int64_t index = g * kStripColumns + c + v * kVectorLanes;
        const Vector scale = scales.at(grouping, g, c + v * kVectorLanes);
        IntVector zero = table.zero - IntVector{};
        if (grouping.zeros) zero += (IntVector)widen_codes(args.strip + layout.zeros_at + index);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          IntVector dot = dots[r * kPlanes][v];
          if constexpr (kPlanes == 2) dot = dot * 256 + dots[r * kPlanes + 1][v];
          const auto total = static_cast<int32_t>(after[r] - before[r]);
          dot -= zero * total;
          sums[r][v] += __builtin_convertvector(dot, Vector) * scale;
        }
        if (!grouping.minima) continue;
        const Vector minimum = minima.at(grouping, g, c + v * kVectorLanes);
        for (int r = 0; r < kRows; ++r) {
          const auto total = static_cast<int32_t>(after[r] - before[r]);
          sums[r][v] += static_cast<float>(total) * minimum;
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        store(args.sums + r * kStripColumns + c + v * kVectorLanes, sums[r][v]);
      }
    }
  }
}

}  // namespace quire::gemm

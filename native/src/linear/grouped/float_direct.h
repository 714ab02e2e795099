// Groups of codes that stand for floats and meet few rows: multiplied as they are read, not written
// out as lines first.
//
// A group's sum is one chain of additions over K, as in the dense product, and each of them waits
// for the one before. Where few rows leave too few chains, two groups are summed side by side.
#pragma once

#include <algorithm>

#include "linear/grouped/float_codes.h"
#include "simd/fetch.h"

namespace quire::gemm {

// Number of rows whose sums fit in registers together with the codes, by measurement.
#if defined(__AVX512F__)
template <class Codes>
constexpr int kDirectFloatRows = 12;
template <>
constexpr int kDirectFloatRows<E4m3Floats> = 8;
#else
template <class Codes>
constexpr int kDirectFloatRows = 4;
#endif

// So far ahead of what is multiplied memory is fetched.
constexpr int64_t kFloatsAhead = 8192;

// Some groups of a strip that meet kRows rows of x.
struct FloatGroups {
  const uint32_t* x;     // of the first group: [line of K][row]
  const uint8_t* codes;  // of the first group
  int64_t ahead;         // prefetch distance: bytes after the line of codes that is read
  const float* scales;   // [group][32]
  int64_t group;         // of K
  int64_t group_bytes;   // of codes
  float* totals;         // [row][32]
};

// Adds kGroups groups, one after the other, to the totals of some columns.
template <class Product, class Codes, int kRows, int kGroups, int kVectors>
QUIRE_INLINE void add_groups(const Codes& codes, const FloatGroups& of, int64_t c) {
  constexpr int kLines = kLinesOf<Codes>;
  const int64_t steps = of.group / kStepOf<Codes>.depth;
  const int64_t group_units = of.group / Codes::kLineDepth * kRows;
  Vector sums[kGroups][kRows][kVectors] = {};
  const uint32_t* x = of.x;
  const uint8_t* line = of.codes + c * 4;
  for (int64_t step = 0; step < steps; ++step, line += kLineBytes, x += kLines * kRows) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const uint8_t* own = line + g * of.group_bytes;
#pragma GCC unroll 4
      for (int64_t i = 0; i < kVectors * static_cast<int64_t>(sizeof(Vector)); i += 64) {
        __builtin_prefetch(own + of.ahead + i);
      }
      BitVector words[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) words[v] = load<BitVector>(own + v * sizeof(Vector));
#pragma GCC unroll 8
      for (int i = 0; i < kLines; ++i) {
        typename Product::Weight weights[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) weights[v] = codes.line(words[v], i);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const auto unit = Product::broadcast(x + g * group_units + i * kRows + r);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            sums[g][r][v] = Product::multiply_add(sums[g][r][v], unit, weights[v]);
          }
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* place = of.totals + r * kStripColumns + c + v * kVectorLanes;
      auto total = load<Vector>(place);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        const float* scales = of.scales + g * kStripColumns + c + v * kVectorLanes;
        total = fused(total, sums[g][r][v], load<Vector>(scales));
      }
      store(place, total);
    }
  }
}

template <class Product, class Codes, int kRows, int kGroups>
QUIRE_INLINE void add_groups(const Codes& codes, const FloatGroups& of) {
  constexpr int kVectors = 2;
  for (int64_t c = 0; c < kStripColumns; c += kVectors * kVectorLanes) {
    add_groups<Product, Codes, kRows, kGroups, kVectors>(codes, of, c);
  }
}

struct FloatStrip {
  const GroupedStrip* layout;
  const uint8_t* data;
  const uint8_t* next;  // what is read after it
  const uint32_t* x;    // one tile
  float* totals;        // [row][32]
};

template <class Product, class Codes, int kRows>
void multiply_float_strip(const Codes& codes, const FloatStrip& strip) {
  constexpr int kGroups = kRows <= 2 ? Codes::kSideBySide : 1;
  const GroupedStrip& layout = *strip.layout;
  const int64_t group = layout.grouping.group;
  const uint8_t* end = strip.data + layout.bytes;
  std::fill_n(strip.totals, kRows * kStripColumns, 0.0f);
  FloatGroups of{};
  of.x = strip.x;
  of.group = group;
  of.group_bytes = layout.step.bytes_of(group);
  of.totals = strip.totals;
  const auto go_on = [&](int64_t count) {
    of.x += count * group / Codes::kLineDepth * kRows;
    of.codes += count * of.group_bytes;
    of.scales += count * kStripColumns;
  };
  for (int64_t first = 0; first < layout.groups; first += layout.chunk_groups) {
    const uint8_t* chunk = strip.data + layout.chunk_of(first);
    const bool is_last = chunk + layout.codes_at + kFloatsAhead >= end;
    of.ahead = kFloatsAhead + (is_last ? strip.next - end : 0);
    fetch_bytes(chunk + of.ahead, layout.codes_at);
    of.codes = chunk + layout.codes_at;
    of.scales = reinterpret_cast<const float*>(chunk);
    int64_t left = std::min(layout.chunk_groups, layout.groups - first);
    for (; left >= kGroups; left -= kGroups) {
      add_groups<Product, Codes, kRows, kGroups>(codes, of);
      go_on(kGroups);
    }
    for (; left > 0; --left) {
      add_groups<Product, Codes, kRows, 1>(codes, of);
      go_on(1);
    }
  }
}

}  // namespace quire::gemm

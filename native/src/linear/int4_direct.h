// 4-bit weights that meet only a few rows: multiplied as they lie, not expanded first.
//
// Over a group, step * sum(x * u) - offset * sum(x) is the same integer as the sum of
// x * (u * step - offset) that expanded weights give, so a row's bits do not tell which of the two
// served it. To expand costs more than it saves until several rows share it.
#pragma once

#include <cstring>
#include <utility>

#include "linear/family.h"
#include "linear/int4_weights.h"
#include "linear/vector_products.h"

namespace quire::gemm {

constexpr int64_t kDirectRows = 6;
constexpr int64_t kSlabUnits = kSlabDepth / 4;
constexpr int64_t kBytesAhead = 3 * kSlabBytes;

// What offsets are multiplied with: minus the sums of the bytes of x in the two groups of a slab,
// in 16 bits each.
template <class Byte>
uint32_t slab_totals(const uint32_t* units) {
  Byte bytes[kSlabDepth];
  std::memcpy(bytes, units, sizeof bytes);
  int32_t sums[kSlabGroups] = {};
  for (int64_t group = 0; group < kSlabGroups; ++group) {
    for (int64_t i = 0; i < kInt4Group; ++i) sums[group] -= bytes[group * kInt4Group + i];
  }
  return static_cast<uint16_t>(sums[0]) | static_cast<uint32_t>(sums[1]) << 16;
}

// Adds the products of one slab and kRows rows of bytes to the integers `sums`, [row][32]. x is
// [unit of 4 numbers][row], `totals` of its two groups [row].
template <class Product, int kRows>
void add_slab(const uint32_t* x, const uint32_t* totals, const uint8_t* slab, const uint8_t* ahead,
              float* sums) {
  using Sum = typename Product::Sum;
  using Words = CodeWords;
  // Two vectors of columns share what is read of x.
  constexpr int kVectors = kRows <= Product::kRowsOfTwoVectors ? 2 : 1;
  if constexpr (kRows > 1 || Product::kPrefetchesForOne) {
    for (int64_t i = 0; i < kSlabBytes; i += 64) __builtin_prefetch(ahead + i);
  }
#pragma GCC unroll 4
  for (int64_t c = 0; c < kSlabColumns; c += kVectors * kPartLanes) {
    Sum total[kRows][kVectors];
    Words steps[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = c + v * kPartLanes;
      steps[v] = widen_codes(slab + kStepsAt + column);
      const Sum offsets =
          (Sum)(widen_codes(slab + column) | widen_codes(slab + kSlabColumns + column) << 16);
      for (int r = 0; r < kRows; ++r) {
        total[r][v] = dot_words(load<Sum>(sums + r * kStripColumns + column),
                                Product::broadcast(totals + r), offsets);
      }
    }
#pragma GCC unroll 2
    for (int64_t group = 0; group < kSlabGroups; ++group) {
      Sum dot[kRows][kVectors] = {};
#pragma GCC unroll 4
      for (int64_t i = group * kGroupLines; i < (group + 1) * kGroupLines; ++i) {
        Sum low[kVectors], high[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          const int64_t column = c + v * kPartLanes;
          const auto line = load<Words>(slab + kCodeBytes + i * kInt4LineBytes + column * 4);
          low[v] = (Sum)(line & 0x0f0f0f0fu);
          high[v] = (Sum)((line >> 4) & 0x0f0f0f0fu);
        }
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          const uint32_t* units = x + 2 * i * kRows + r;
          const auto first_four = Product::broadcast(units);
          const auto last_four = Product::broadcast(units + kRows);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            dot[r][v] = Product::multiply_add(dot[r][v], first_four, low[v]);
            dot[r][v] = Product::multiply_add(dot[r][v], last_four, high[v]);
          }
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Sum step = Product::step_of(steps_of(steps[v], group));
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          total[r][v] = Product::add_scaled(total[r][v], dot[r][v], step);
        }
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      for (int r = 0; r < kRows; ++r) {
        store(sums + r * kStripColumns + c + v * kPartLanes, total[r][v]);
      }
    }
  }
}

// Strip after strip: one long stream is read faster than several side by side.
template <class Product, int kRows>
void multiply_direct_rows(const Block& block, const uint32_t* totals) {
  const int64_t slabs = block.k / kSlabDepth;
  const auto* x = reinterpret_cast<const uint32_t*>(block.x);
  const uint8_t* end = block.weight + block.strips * block.strip_bytes;
  for (int64_t s = 0; s < block.strips; ++s) {
    float* sums = block.sums_of(s, 0);
    std::memset(sums, 0, kRows * kStripColumns * sizeof *sums);
    for (int64_t i = 0; i < slabs; ++i) {
      const uint8_t* slab = block.weight + s * block.strip_bytes + i * kSlabBytes;
      const uint8_t* ahead = slab + kBytesAhead;
      if (ahead >= end) ahead = block.next + (ahead - end);
      add_slab<Product, kRows>(x + i * kSlabUnits * kRows, totals + i * kRows, slab, ahead, sums);
    }
  }
}

// `totals`: of each slab, the sums of x in its two groups, as `slab_totals` makes them, [row].
template <class Product, size_t... kRows>
void multiply_direct(const Block& block, const uint32_t* totals, std::index_sequence<kRows...>) {
  using Function = void (*)(const Block&, const uint32_t*);
  static constexpr Function kTable[] = {
      multiply_direct_rows<Product, static_cast<int>(kRows) + 1>...};
  kTable[block.rows - 1](block, totals);
}

}  // namespace quire::gemm

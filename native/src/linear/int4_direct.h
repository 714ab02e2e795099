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
  // One row is read as fast as memory gives it, and prefetches only slow that down.
  if constexpr (kRows > 1) {
    for (int64_t i = 0; i < kSlabBytes; i += 64) __builtin_prefetch(ahead + i);
  }
#pragma GCC unroll 4
  for (int64_t c = 0; c < kSlabColumns; c += kPartLanes) {
    Sum total[kRows];
    const Words steps = widen_codes(slab + kStepsAt + c);
    const Sum offsets = (Sum)(widen_codes(slab + c) | widen_codes(slab + kSlabColumns + c) << 16);
    for (int r = 0; r < kRows; ++r) {
      total[r] = dot_words(load<Sum>(sums + r * kStripColumns + c), Product::broadcast(totals + r),
                           offsets);
    }
#pragma GCC unroll 2
    for (int64_t group = 0; group < kSlabGroups; ++group) {
      const Sum step = Product::step_of(steps_of(steps, group));
      constexpr int kRun = Product::kLinesInSum;
#pragma GCC unroll 2
      for (int64_t first = group * kGroupLines; first < (group + 1) * kGroupLines; first += kRun) {
        Sum dot[kRows] = {};
#pragma GCC unroll 4
        for (int64_t i = first; i < first + kRun; ++i) {
          const auto line = load<Words>(slab + kCodeBytes + i * kInt4LineBytes + c * 4);
          const Sum low = (Sum)(line & 0x0f0f0f0fu);
          const Sum high = (Sum)((line >> 4) & 0x0f0f0f0fu);
#pragma GCC unroll 6
          for (int r = 0; r < kRows; ++r) {
            const uint32_t* units = x + 2 * i * kRows + r;
            dot[r] = Product::multiply_add(dot[r], Product::broadcast(units), low);
            dot[r] = Product::multiply_add(dot[r], Product::broadcast(units + kRows), high);
          }
        }
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) total[r] = Product::add_scaled(total[r], dot[r], step);
      }
    }
    for (int r = 0; r < kRows; ++r) store(sums + r * kStripColumns + c, total[r]);
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

// 4-bit weights that meet only a few rows: multiplied as they lie, not expanded first.
//
// Over a group, step * sum(x * (u - zero)) is the same integer as the sum of x * ((u - zero) *
// step) that expanded weights give, so a row's bits do not tell which of the two served it. To
// expand costs more than it saves until several rows share it.
#pragma once

#include <utility>

#include "linear/family.h"
#include "linear/int4_weights.h"
#include "linear/vector_products.h"

namespace quire::gemm {

constexpr int64_t kDirectRows = 6;
constexpr int64_t kSlabUnits = kSlabDepth / 4;
constexpr int64_t kBytesAhead = 4 * kSlabBytes;

// Adds the products of one slab and kRows rows of bytes to the integers `sums`, [row][32]. x is
// [unit of 4 numbers][row].
template <class Product, int kRows>
void add_slab(const uint32_t* x, const uint8_t* slab, const uint8_t* ahead, float* sums) {
  using Sum = typename Product::Sum;
  typedef uint8_t Bytes __attribute__((vector_size(kPartLanes * 4)));
  using Words = CodeWords;
  __builtin_prefetch(ahead);
#pragma GCC unroll 4
  for (int64_t c = 0; c < kSlabColumns; c += kPartLanes) {
    Sum total[kRows];
    for (int r = 0; r < kRows; ++r) total[r] = load<Sum>(sums + r * kStripColumns + c);
#pragma GCC unroll 2
    for (int64_t group = 0; group < kSlabGroups; ++group) {
      const Words code = widen_codes(slab + group * kSlabColumns + c) * 0x01010101u;
      const Bytes zero = (Bytes)((code >> 4) & 0x0f0f0f0fu);
      const Sum step = Product::step_of(code);
      constexpr int kRun = Product::kLinesInSum;
#pragma GCC unroll 2
      for (int64_t first = group * kGroupLines; first < (group + 1) * kGroupLines; first += kRun) {
        Sum dot[kRows] = {};
#pragma GCC unroll 4
        for (int64_t i = first; i < first + kRun; ++i) {
          const auto line = load<Words>(slab + kCodeBytes + i * kInt4LineBytes + c * 4);
          __builtin_prefetch(ahead + kCodeBytes + i * kInt4LineBytes + c * 4);
          const Sum low = (Sum)((Bytes)(line & 0x0f0f0f0fu) - zero);
          const Sum high = (Sum)((Bytes)((line >> 4) & 0x0f0f0f0fu) - zero);
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
void multiply_direct_rows(const Block& block) {
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
      add_slab<Product, kRows>(x + i * kSlabUnits * kRows, slab, ahead, sums);
    }
  }
}

template <class Product, size_t... kRows>
void multiply_direct(const Block& block, std::index_sequence<kRows...>) {
  using Function = void (*)(const Block&);
  static constexpr Function kTable[] = {
      multiply_direct_rows<Product, static_cast<int>(kRows) + 1>...};
  kTable[block.rows - 1](block);
}

}  // namespace quire::gemm

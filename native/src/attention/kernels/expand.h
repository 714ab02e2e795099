// Turns groups of an int8 cache into what the products take: float32, or pairs of bfloat16.
//
// A line of 64 bytes is 16 columns of four numbers that follow each other along the summed
// dimension. Each number is moved into the top byte of its lane and converted there, so that what
// comes out is 2^24 times the integer, exactly, in both types; kExpandedUnit takes the factor back.
#pragma once

#include <cstdint>

#include "attention/kernels/kernel.h"

namespace quire {

constexpr float kExpandedUnit = 0x1p-24f;

// Number `kIndex` of every column.
template <int kIndex>
QUIRE_INLINE F32x16 numbers_of(U32x16 line) {
  const U32x16 top = line << (24 - 8 * kIndex) & 0xff000000u;
  return gemm::convert<F32x16>(gemm::as<I32x16>(top));
}

// A line as four rows of 16 float32, or as two rows of 16 pairs of bfloat16, `stride` bytes apart.
template <class Elem>
QUIRE_INLINE void expand_line(const uint8_t* from, uint8_t* out, int64_t stride) {
  const U32x16 line = gemm::load<U32x16>(from);
  const F32x16 a = numbers_of<0>(line), b = numbers_of<1>(line);
  const F32x16 c = numbers_of<2>(line), d = numbers_of<3>(line);
  if constexpr (sizeof(Elem) == 4) {
    gemm::store(out, a);
    gemm::store(out + stride, b);
    gemm::store(out + 2 * stride, c);
    gemm::store(out + 3 * stride, d);
  } else {
    // Eight significant bits: the lower halves of the float32s are zero.
    gemm::store(out, gemm::bits(a) >> 16 | gemm::bits(b));
    gemm::store(out + stride, gemm::bits(c) >> 16 | gemm::bits(d));
  }
}

// Expands [quads][blocks] lines: a line's rows lie `row_stride` bytes apart, and so do the last row
// of a quad and the first of the next; blocks of 16 columns lie `column_stride` apart. With every
// kLines lines read, a line of the group at `fetch` (if any) is prefetched into the second-level
// cache.
template <class Elem, int kLines = 1>
QUIRE_INLINE void expand_group(const uint8_t* group, int64_t quads, int64_t blocks, uint8_t* out,
                               int64_t row_stride, int64_t column_stride, const uint8_t* fetch) {
  constexpr int64_t kRowsOfQuad = sizeof(Elem);
  for (int64_t quad = 0; quad < quads; ++quad, out += kRowsOfQuad * row_stride) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t line = quad * blocks + block;
      if (fetch && line % kLines == 0) __builtin_prefetch(fetch + line / kLines * 64, 0, 2);
      expand_line<Elem>(group + line * 64, out + block * column_stride, row_stride);
    }
  }
}

// Puts K of groups [g0, g1) where the products find it, and prefetches what is next to it.
template <class Elem>
void expand_keys(ChunkView& chunk, int64_t dim, int g0, int g1) {
  const int64_t bytes = kGroup * dim * sizeof(Elem);
  for (int g = g0; g < g1; ++g) {
    uint8_t* out = chunk.key_space + g % chunk.key_slots * bytes;
    expand_group<Elem>(chunk.keys[g], dim / 4, 1, out, 64, 0, chunk.prefetch_keys[g]);
    chunk.keys[g] = out;
  }
}

}  // namespace quire

// Turns groups of an int8 or int4 cache into what products on tiles take: pairs of bfloat16.
//
// A line of 64 bytes is 16 columns of four numbers that follow each other along the summed
// dimension. Each number is moved into the top byte of its lane and converted there, so that what
// comes out is 2^24 times the integer, exactly; kExpandedUnit takes the factor back.
#pragma once

#include <cstdint>

#include "attention/kernels/kernel.h"

namespace quire {

constexpr float kExpandedUnit = 0x1p-24f;
constexpr int64_t kBfloat16Bytes = 2;

// Number `kIndex` of every column.
template <int kIndex>
QUIRE_INLINE F32x16 numbers_of(U32x16 line) {
  const U32x16 top = line << (24 - 8 * kIndex) & 0xff000000u;
  return gemm::convert<F32x16>(gemm::as<I32x16>(top));
}

// A line as two rows of 16 pairs of bfloat16, `stride` bytes apart.
QUIRE_INLINE void expand_line(U32x16 line, uint8_t* out, int64_t stride) {
  const F32x16 a = numbers_of<0>(line), b = numbers_of<1>(line);
  const F32x16 c = numbers_of<2>(line), d = numbers_of<3>(line);
  // Eight significant bits: the lower halves of the float32s are zero.
  gemm::store(out, gemm::bits(a) >> 16 | gemm::bits(b));
  gemm::store(out + stride, gemm::bits(c) >> 16 | gemm::bits(d));
}

// Expands [quads][blocks] lines: a line's rows lie `row_stride` bytes apart, and so do the last row
// of a quad and the first of the next; blocks of 16 columns lie `column_stride` apart. With every
// kLines lines read, a line of the group at `fetch` (if any) is prefetched into the second-level
// cache.
template <int kBits, int kLines = 1>
QUIRE_INLINE void expand_group(const uint8_t* group, int64_t quads, int64_t blocks, uint8_t* out,
                               int64_t row_stride, int64_t column_stride, const uint8_t* fetch) {
  constexpr int64_t kRowsOfQuad = 2;
  constexpr int kQuads = 8 / kBits;  // in a line
  const int64_t quad_stride = kRowsOfQuad * row_stride;
  for (int64_t first = 0; first < quads; first += kQuads, out += kQuads * quad_stride) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t line = first / kQuads * blocks + block;
      if (fetch && line % kLines == 0) __builtin_prefetch(fetch + line / kLines * 64, 0, 2);
      const auto words = gemm::load<U32x16>(group + line * 64);
#pragma GCC unroll 2
      for (int quad = 0; quad < kQuads; ++quad) {
        expand_line(quad_of<kBits>(words, quad), out + quad * quad_stride + block * column_stride,
                    row_stride);
      }
    }
  }
}

// Puts K of groups [g0, g1) where the products find it, and prefetches what is next to it.
template <int kBits>
void expand_keys(ChunkView& chunk, int64_t dim, int g0, int g1) {
  const int64_t bytes = kGroup * dim * kBfloat16Bytes;
  for (int g = g0; g < g1; ++g) {
    uint8_t* out = chunk.key_space + g % chunk.key_slots * bytes;
    const uint8_t* const keys = chunk.keys[g];
    const uint8_t* const fetch = chunk.prefetch_keys[g];
    chunk.keys[g] = out;
    if constexpr (kBits == 8) {
      expand_group<kBits>(keys, dim / 4, 1, out, 64, 0, fetch);
      continue;
    }
    for (int64_t d = 0; d < dim; d += kHeadAlign) {
      if (fetch) fetch_lines(fetch + d * 10, 5 * 64);
#pragma GCC unroll 8
      for (int quad = 0; quad < 8; ++quad, out += 64 * kBfloat16Bytes) {
        expand_line(key_quad_of<U32x16>(keys + d * 8, keys + dim * 8 + d * 2, quad), out, 64);
      }
    }
  }
}

}  // namespace quire

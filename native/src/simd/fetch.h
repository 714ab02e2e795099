// Prefetches what the epilogue will touch, while the sums are still being formed.
#pragma once

#include "linear/family.h"
#include "simd/lanes.h"

namespace quire::gemm {

QUIRE_INLINE void fetch_bytes(const uint8_t* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

// Rows [from, to) of a destination, to be written or only read.
template <bool kToWrite>
QUIRE_INLINE void fetch_rows(const Destination& where, int64_t from, int64_t to) {
  for (int64_t row = from; row < to; ++row) {
    const uint8_t* line = where.first + row * where.row_bytes;
    for (int64_t at = 0; at < where.bytes; at += 64) __builtin_prefetch(line + at, kToWrite);
  }
}

// What becomes of rows [from, to) of x.
QUIRE_INLINE void fetch_destinations(const Block& block, int64_t from, int64_t to) {
  fetch_rows<true>(block.out, from, to);
  fetch_rows<false>(block.residual, from, to);
}

}  // namespace quire::gemm

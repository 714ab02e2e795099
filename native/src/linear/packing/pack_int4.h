// Rounds columns of a strip to 4 bits; see int4_weights.h for what becomes of them.
#pragma once

#include "linear/packing/pack_source.h"

namespace quire::gemm {

// Writes columns of one half strip: source rows `row .. row + count - 1` become its columns
// `column ..`, with their scales and offsets; with `zero_rest` the columns after them are cleared.
// Returns whether all of the numbers are finite.
struct Int4HalfStripWriter {
  const Source& source;
  uint8_t* strip;
  int64_t first;  // column of the strip that is the half's first
  int64_t slabs;
  float* scales;
  int32_t* offsets;

  bool write(int64_t row, int64_t count, int64_t column, bool zero_rest);
};

}  // namespace quire::gemm

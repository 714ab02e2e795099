// Puts a checkpoint's groups of codes into strips, as they are.
#pragma once

#include "linear/linear.h"
#include "linear/packing/pack_source.h"

namespace quire::gemm {

// Writes columns of one half strip: source rows `row .. row + count - 1` become its columns
// `column ..`; with `zero_rest` the columns after them are cleared. Returns whether all scales and
// minima are finite.
struct GroupedHalfStripWriter {
  const Source& source;
  Format format;
  uint8_t* strip;
  int64_t first;  // column of the strip that is the half's first

  bool write(int64_t row, int64_t count, int64_t column, bool zero_rest) const;
};

}  // namespace quire::gemm

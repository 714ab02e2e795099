// How a weight lies in memory: strips of 32 columns, and how deep K is padded, for each format.
#pragma once

#include "linear/families.h"

namespace quire::gemm {

struct Layout {
  int64_t group;  // elements of one column that lie together
  int64_t depth;  // K is padded to a multiple of this
  int64_t element_bytes;

  int64_t padded(int64_t k) const { return round_up(k, depth); }
  int64_t strip_bytes(int64_t k) const { return padded(k) * kStripColumns * element_bytes; }
};

inline Layout layout_of(Format format) {
  if (format == Format::kBF16) return {2, Bf16Family::kDepth, 2};
  return {1, F32Family::kDepth, 4};
}

// The columns that belong to one half strip: gate or up of a glu matrix take one half each.
inline int64_t strips_of(int64_t n, bool glu) {
  return glu ? ceil_div(n / 2, kHalfStrip) : ceil_div(n, kStripColumns);
}

}  // namespace quire::gemm

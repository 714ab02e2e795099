// How a weight lies in memory: strips of 32 columns, and how deep K is padded, for each format.
#pragma once

#include "linear/families.h"
#include "linear/grouped/grouped_weights.h"
#include "linear/int4_weights.h"

namespace quire::gemm {

struct Layout {
  int64_t depth;        // K is padded to a multiple of this
  int64_t depth_bytes;  // of so much of K in one strip
  bool has_scales;      // a float32 scale and an int32 offset for each column, after all strips
  Format format = Format::kF32;  // kept for grouped ones, whose strips do not grow by steps of K

  int64_t padded(int64_t k) const { return round_up(k, depth); }
  int64_t strip_bytes(int64_t k) const {
    if (is_grouped(format)) return GroupedStrip(format, k).bytes;
    return padded(k) / depth * depth_bytes;
  }
};

inline Layout layout_of(Format format) {
  if (is_grouped(format)) return {Grouping(format).group, 0, false, format};
  const int64_t depth = family_of(format, 1).depth;
  switch (format) {
    case Format::kBF16:
    case Format::kHeldBF16:
    case Format::kHeldF16:
      return {depth, depth * kStripColumns * 2, false};
    case Format::kInt8A8:
    case Format::kInt8A16:
      return {depth, depth * kStripColumns, true};
    case Format::kInt4A8:
    case Format::kInt4A16:
      return {depth, depth / kSlabDepth * kSlabBytes, true};
    default:
      break;
  }
  return {depth, depth * kStripColumns * 4, false};
}

inline bool is_int4(Format format) {
  return format == Format::kInt4A8 || format == Format::kInt4A16;
}

// The columns that belong to one half strip: gate or up of a glu matrix take one half each.
inline int64_t strips_of(int64_t n, bool glu) {
  return glu ? ceil_div(n / 2, kHalfStrip) : ceil_div(n, kStripColumns);
}

inline float* scales_of(const PackedMatrix& matrix) {
  const int64_t bytes =
      strips_of(matrix.n, matrix.glu) * layout_of(matrix.format).strip_bytes(matrix.k);
  return reinterpret_cast<float*>(static_cast<uint8_t*>(matrix.data) + bytes);
}

// The order of the columns, after all strips; null for formats without one.
inline int32_t* order_of(const PackedMatrix& matrix) {
  if (!is_grouped(matrix.format) || !Grouping(matrix.format).ordered) return nullptr;
  return reinterpret_cast<int32_t*>(scales_of(matrix));
}

inline int32_t* offsets_of(const PackedMatrix& matrix) {
  return reinterpret_cast<int32_t*>(scales_of(matrix) +
                                    strips_of(matrix.n, matrix.glu) * kStripColumns);
}

}  // namespace quire::gemm

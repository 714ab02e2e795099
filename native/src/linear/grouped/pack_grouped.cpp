#include "linear/grouped/pack_grouped.h"

#include <cmath>
#include <cstring>

#include "linear/grouped/grouped_weights.h"

namespace quire::gemm {
namespace {

// Copies what each group of a row has into its column of the strip.
void copy_groups(const uint8_t* from, int64_t groups, int64_t item, int64_t column, uint8_t* to) {
  for (int64_t g = 0; g < groups; ++g) {
    std::memcpy(to + (g * kStripColumns + column) * item, from + g * item, item);
  }
}

bool are_finite(const Grouping& grouping, const uint8_t* from, int64_t groups) {
  bool finite = true;
  for (int64_t g = 0; g < groups; ++g) finite &= std::isfinite(grouping.number(from, g));
  return finite;
}

// Clears a column. Its codes may be any: its scale is 0.
void clear(const GroupedStrip& layout, uint8_t* strip, int64_t column) {
  const Grouping& grouping = layout.grouping;
  const uint8_t nothing[4] = {};
  for (int64_t g = 0; g < layout.groups; ++g) {
    const int64_t at = g * kStripColumns + column;
    const int64_t item = grouping.item_bytes();
    std::memcpy(strip + at * item, nothing, item);
    if (grouping.zeros) strip[layout.zeros_at + at] = 0;
    if (grouping.minima) std::memcpy(strip + layout.minima_at + at * item, nothing, item);
  }
  for (int64_t k = 0; k < layout.groups * grouping.group; ++k) {
    strip[layout.code_at(column, k)] = 0;
  }
}

}  // namespace

bool GroupedHalfStripWriter::write(int64_t row, int64_t count, int64_t column,
                                   bool zero_rest) const {
  const GroupedStrip layout(format, source.k);
  const Grouping& grouping = layout.grouping;
  const int64_t item = grouping.item_bytes();
  const int64_t groups = layout.groups;
  const auto* codes = static_cast<const uint8_t*>(source.data);
  const uint8_t* scales = codes + source.rows * source.k;
  const uint8_t* zeros = scales + source.rows * groups * item;
  const uint8_t* minima = zeros + (grouping.zeros ? source.rows * groups : 0);
  const int64_t end = zero_rest ? kHalfStrip : column + count;
  for (int64_t c = column; c < end; ++c) clear(layout, strip, first + c);
  bool finite = true;
  for (int64_t r = row; r < row + count; ++r) {
    const int64_t at = first + column + r - row;
    for (int64_t k = 0; k < source.k; ++k) {
      strip[layout.code_at(at, k)] |=
          static_cast<uint8_t>(codes[r * source.k + k] << layout.code_shift(k));
    }
    const uint8_t* own_scales = scales + r * groups * item;
    copy_groups(own_scales, groups, item, at, strip);
    finite &= are_finite(grouping, own_scales, groups);
    if (grouping.zeros) {
      copy_groups(zeros + r * groups, groups, 1, at, strip + layout.zeros_at);
    }
    if (!grouping.minima) continue;
    const uint8_t* own_minima = minima + r * groups * item;
    copy_groups(own_minima, groups, item, at, strip + layout.minima_at);
    finite &= are_finite(grouping, own_minima, groups);
  }
  return finite;
}

}  // namespace quire::gemm

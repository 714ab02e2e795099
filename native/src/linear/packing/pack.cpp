// Packs a weight [n, k] into strips (see family.h). Called once per weight at load, by several
// threads on disjoint rows.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "linear/grouped/pack_grouped.h"
#include "linear/layout.h"
#include "linear/packing/pack_int4.h"
#include "linear/packing/pack_source.h"
#include "simd/transpose.h"

namespace quire {

using gemm::ceil_div;
using gemm::kHalfStrip;
using gemm::kStripColumns;
using gemm::Source;

namespace {

struct FourBits {};  // kinds of packed elements
struct Grouped {};

// Nearest whole number in [-127, 127]; not a number becomes -127.
int8_t quantised(float value) {
  const float x = (value + 12582912.0f) - 12582912.0f;  // as gemm::round_whole
  const float low = x > -127.0f ? x : -127.0f;
  return static_cast<int8_t>(static_cast<int32_t>(low < 127.0f ? low : 127.0f));
}

// Writes columns of one half strip: source rows `row .. row + count - 1` become its columns
// `column ..`; with `zero_rest` the columns after them are cleared. Returns whether all of the
// numbers are finite. T is the packed element.
template <class T>
struct HalfStripWriter {
  static constexpr int64_t kWordElements = 4 / sizeof(T);
  static constexpr int64_t kBlockWords = 64;  // converted at a time
  static constexpr int64_t kBlockElements = kBlockWords * kWordElements;

  const Source& source;
  uint32_t* half;     // first 4-byte word of the half strip
  int64_t num_words;  // of a column, padding of K included
  float* scales;      // of its columns, for int8
  int32_t* offsets;   // likewise

  bool write(int64_t row, int64_t count, int64_t column, bool zero_rest) {
    alignas(64) T block[kHalfStrip][kBlockElements] = {};
    float inverse[kHalfStrip] = {};
    const int64_t end = zero_rest ? kHalfStrip : column + count;
    bool finite = true;
    if constexpr (sizeof(T) == 1) finite = prepare_scales(row, count, column, end, inverse);
    for (int64_t w = 0; w < num_words; w += kBlockWords) {
      const int64_t width = std::min(kBlockWords, num_words - w);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t c = column + r;
        read(row + r, c, w * kWordElements, width * kWordElements, inverse[c], block[c]);
      }
      // Other columns hold zeros, and columns after `width` were checked before.
      if constexpr (sizeof(T) > 1) {
        finite &= gemm::all_finite(block[0], kHalfStrip * kBlockElements);
      }
      uint32_t* lines = half + w * kStripColumns;
      if constexpr (std::is_same_v<T, gemm::Float16>) {
        put_float16(block, column, end, width, reinterpret_cast<uint8_t*>(lines));
        continue;
      }
      if (column == 0 && end == kHalfStrip && width % 4 == 0) {
        const auto* words = reinterpret_cast<const uint32_t*>(block[0]);
        gemm::transpose_group(words, kBlockWords, width, lines, kStripColumns);
        continue;
      }
      for (int64_t i = 0; i < width; ++i, lines += kStripColumns) {
        for (int64_t c = column; c < end; ++c)
          std::memcpy(lines + c, block[c] + i * kWordElements, 4);
      }
    }
    return finite;
  }

  // Columns of float16, at the places that they have in a strip.
  static void put_float16(const T (&block)[kHalfStrip][kBlockElements], int64_t column, int64_t end,
                          int64_t width, uint8_t* lines) {
    for (int64_t i = 0; i < width * kWordElements; ++i) {
      for (int64_t c = column; c < end; ++c) {
        std::memcpy(lines + gemm::f16_place(c, i), &block[c][i], sizeof(T));
      }
    }
  }

  bool prepare_scales(int64_t row, int64_t count, int64_t column, int64_t end, float* inverse) {
    bool finite = true;
    for (int64_t c = column; c < end; ++c) {
      gemm::WeightScale found = {};
      if (c < column + count) found = gemm::weight_scale(source, row + c - column, 127.0f);
      inverse[c] = found.inverse;
      scales[c] = found.scale;
      offsets[c] = 0;
      finite &= found.is_finite();
    }
    return finite;
  }

  void read(int64_t row, int64_t column, int64_t first, int64_t count, float inverse, T* out) {
    if constexpr (sizeof(T) == 1) {
      float values[kBlockElements];
      gemm::read_row(source, row, first, count, values);
      int32_t total = 0;
      for (int64_t i = 0; i < count; ++i) {
        out[i] = quantised(values[i] * inverse);
        total += out[i];
      }
      offsets[column] += 128 * total;
    } else {
      gemm::read_row(source, row, first, count, out);
    }
  }
};

// The writer of half strip `index`, by the kind of its packed elements.
template <class T>
auto writer(const PackedMatrix& matrix, const Source& source, int64_t index) {
  const gemm::Layout layout = gemm::layout_of(matrix.format);
  const int64_t depth = layout.padded(matrix.k);
  auto* strip = static_cast<uint8_t*>(matrix.data) + index / 2 * layout.strip_bytes(matrix.k);
  const int64_t first = index % 2 * kHalfStrip;
  if constexpr (std::is_same_v<T, Grouped>) {
    return gemm::GroupedHalfStripWriter(source, matrix.format, strip, first);
  }
  float* scales = gemm::scales_of(matrix) + index * kHalfStrip;
  int32_t* offsets = gemm::offsets_of(matrix) + index * kHalfStrip;
  if constexpr (std::is_same_v<T, FourBits>) {
    return gemm::Int4HalfStripWriter{source, strip,  first, depth / gemm::kSlabDepth,
                                     scales, offsets};
  } else if constexpr (!std::is_same_v<T, Grouped>) {
    auto* half = reinterpret_cast<uint32_t*>(strip) + first;
    return HalfStripWriter<T>{source, half, depth / HalfStripWriter<T>::kWordElements, scales,
                              offsets};
  }
}

// Packs matrix rows [row0, row0 + rows) that lie in the section [begin, end) of the matrix, whose
// columns fill every `stride`-th half strip from `first_half` on.
template <class T>
bool pack_section(const PackedMatrix& matrix, const Source& source, int64_t src_row0, int64_t row0,
                  int64_t rows, int64_t begin, int64_t end, int64_t first_half, int64_t stride) {
  bool finite = true;
  const int64_t stop = std::min(row0 + rows, end);
  for (int64_t row = std::max(row0, begin); row < stop;) {
    const int64_t column = (row - begin) % kHalfStrip;
    const int64_t count = std::min(kHalfStrip - column, stop - row);
    const int64_t index = first_half + (row - begin) / kHalfStrip * stride;
    finite &= writer<T>(matrix, source, index)
                  .write(src_row0 + row - row0, count, column, row + count == end);
    row += count;
  }
  return finite;
}

template <class T>
bool pack_format(const PackedMatrix& matrix, const Source& source, int64_t src_row0, int64_t row0,
                 int64_t rows) {
  const int64_t n = matrix.n;
  bool finite;
  if (matrix.glu) {
    const int64_t of_gate = std::max<int64_t>(n / 2 - row0, 0);
    finite = pack_section<T>(matrix, source, src_row0, row0, rows, 0, n / 2, 0, 2);
    finite &= pack_section<T>(matrix, source, src_row0 + of_gate, std::max(row0, n / 2),
                              rows - of_gate, n / 2, n, 1, 2);
  } else {
    finite = pack_section<T>(matrix, source, src_row0, row0, rows, 0, n, 0, 1);
  }
  // The call that packs the last row clears the missing second half of the last strip.
  const int64_t halves = ceil_div(n, kHalfStrip);
  if (row0 + rows == n && !matrix.glu && halves % 2 != 0) {
    writer<T>(matrix, source, halves).write(0, 0, 0, true);
  }
  return finite;
}

}  // namespace

size_t packed_bytes(Format format, int64_t n, int64_t k, bool glu) {
  const gemm::Layout layout = gemm::layout_of(format);
  const int64_t strip = layout.strip_bytes(k) + (layout.has_scales ? kStripColumns * 8 : 0);
  const bool ordered = is_grouped(format) && gemm::Grouping(format).ordered;
  const int64_t order = ordered ? gemm::round_up(k * 4, 64) : 0;
  return static_cast<size_t>(gemm::strips_of(n, glu) * strip + order);
}

int64_t pack_row_multiple() { return kStripColumns; }

bool pack_rows(const PackedMatrix& matrix, const void* src, DType src_dtype, bool transposed,
               int64_t src_rows, int64_t src_row0, int64_t row0, int64_t rows) {
  const Source source{src, src_dtype, transposed, src_rows, matrix.k};
  switch (kind_of(matrix.format)) {
    case Format::kF32:
      return pack_format<float>(matrix, source, src_row0, row0, rows);
    case Format::kBF16:
    case Format::kHeldBF16:
      return pack_format<uint16_t>(matrix, source, src_row0, row0, rows);
    case Format::kHeldF16:
      return pack_format<gemm::Float16>(matrix, source, src_row0, row0, rows);
    case Format::kInt8A8:
    case Format::kInt8A16:
      return pack_format<int8_t>(matrix, source, src_row0, row0, rows);
    case Format::kInt4A8:
    case Format::kInt4A16:
      return pack_format<FourBits>(matrix, source, src_row0, row0, rows);
    case Format::kGroupedA8:
    case Format::kGroupedA16:
    case Format::kGroupedA8Blocks:
    case Format::kGroupedBf16:
    case Format::kGroupedF32:
      return pack_format<Grouped>(matrix, source, src_row0, row0, rows);
  }
  return true;
}

}  // namespace quire

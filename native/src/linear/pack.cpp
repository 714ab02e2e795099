// Brings a weight [n, k] into strips (see family.h). Called once per weight at load, by several
// threads on disjoint rows.
#include <algorithm>
#include <cmath>

#include "linear/layout.h"
#include "linear/simd.h"

namespace quire {

using gemm::ceil_div;
using gemm::kHalfStrip;
using gemm::kStripColumns;

namespace {

// Rows of the source matrix, read as float32 or as bfloat16 whatever they are held in.
struct Source {
  const void* data;
  DType dtype;
  bool transposed;
  int64_t rows;  // of the whole source
  int64_t k;

  int64_t index(int64_t row, int64_t column) const {
    return transposed ? column * rows + row : row * k + column;
  }

  float as_f32(int64_t i) const {
    if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
    const uint16_t half = static_cast<const uint16_t*>(data)[i];
    return dtype == DType::kBF16 ? gemm::bf16_to_f32(half) : gemm::f16_to_f32(half);
  }

  uint16_t as_bf16(int64_t i) const {
    if (dtype == DType::kBF16) return static_cast<const uint16_t*>(data)[i];
    return gemm::f32_to_bf16(as_f32(i));
  }
};

// Elements `first .. first + count - 1` of one row of the source, converted, zeros after the end.
// The plain loops by type are there for the compiler to vectorise.
void read_row(const Source& source, int64_t row, int64_t first, int64_t count, float* out) {
  const int64_t have = std::clamp<int64_t>(source.k - first, 0, count);
  const int64_t at = source.index(row, first);
  if (source.transposed) {
    for (int64_t c = 0; c < have; ++c) out[c] = source.as_f32(source.index(row, first + c));
  } else if (source.dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(source.data) + at, have, out);
  } else {
    const auto* from = static_cast<const uint16_t*>(source.data) + at;
    const bool is_bf16 = source.dtype == DType::kBF16;
    if (is_bf16) {
      for (int64_t c = 0; c < have; ++c) out[c] = gemm::bf16_to_f32(from[c]);
    } else {
      for (int64_t c = 0; c < have; ++c) out[c] = gemm::f16_to_f32(from[c]);
    }
  }
  std::fill(out + have, out + count, 0.0f);
}

void read_row(const Source& source, int64_t row, int64_t first, int64_t count, uint16_t* out) {
  const int64_t have = std::min(count, source.k - first);
  if (source.dtype == DType::kBF16 && !source.transposed) {
    std::copy_n(static_cast<const uint16_t*>(source.data) + source.index(row, first),
                std::max<int64_t>(have, 0), out);
  } else {
    for (int64_t c = 0; c < have; ++c) out[c] = source.as_bf16(source.index(row, first + c));
  }
  for (int64_t c = std::max<int64_t>(have, 0); c < count; ++c) out[c] = 0;
}

// The scale that brings a row of weights to signed bytes.
float row_scale(const Source& source, int64_t row) {
  constexpr int64_t kChunk = 256;
  float values[kChunk];
  gemm::F32x16 largest = {};
  for (int64_t c = 0; c < source.k; c += kChunk) {
    read_row(source, row, c, kChunk, values);
    for (int64_t i = 0; i < kChunk; i += gemm::kLanes) {
      largest = gemm::maximum(gemm::absolute(gemm::load<gemm::F32x16>(values + i)), largest);
    }
  }
  float top = 0.0f;
  for (int lane = 0; lane < gemm::kLanes; ++lane) top = std::max(top, largest[lane]);
  return top / 127.0f;
}

// Nearest whole number in [-127, 127]; not a number becomes -127.
int8_t quantised(float value) {
  const float x = (value + 12582912.0f) - 12582912.0f;  // as gemm::round_whole
  const float low = x > -127.0f ? x : -127.0f;
  return static_cast<int8_t>(static_cast<int32_t>(low < 127.0f ? low : 127.0f));
}

// Writes columns of one half strip: source rows `row .. row + count - 1` become its columns
// `column ..`; with `zero_rest` the columns after them are cleared. T is the packed element.
template <class T>
struct HalfStripWriter {
  static constexpr int64_t kGroup = 4 / sizeof(T);
  static constexpr int64_t kChunkGroups = 64;  // converted at a time
  static constexpr int64_t kChunkElements = kChunkGroups * kGroup;

  const Source& source;
  uint32_t* half;    // first 4-byte group of the half strip
  int64_t groups;    // of K, padding included
  float* scales;     // of its columns, for int8
  int32_t* offsets;  // likewise

  void write(int64_t row, int64_t count, int64_t column, bool zero_rest) {
    alignas(64) T block[kHalfStrip][kChunkElements] = {};
    const int64_t end = zero_rest ? kHalfStrip : column + count;
    if constexpr (sizeof(T) == 1) prepare_scales(row, count, column, end);
    for (int64_t g = 0; g < groups; g += kChunkGroups) {
      const int64_t width = std::min(kChunkGroups, groups - g);
      for (int64_t r = 0; r < count; ++r) {
        read(row + r, column + r, g * kGroup, width * kGroup, block[column + r]);
      }
      for (int64_t i = 0; i < width; ++i) {
        uint32_t* line = half + (g + i) * kStripColumns;
        for (int64_t c = column; c < end; ++c) std::memcpy(line + c, block[c] + i * kGroup, 4);
      }
    }
  }

  void prepare_scales(int64_t row, int64_t count, int64_t column, int64_t end) {
    for (int64_t c = column; c < end; ++c) {
      scales[c] = c < column + count ? row_scale(source, row + c - column) : 0.0f;
      offsets[c] = 0;
    }
  }

  void read(int64_t row, int64_t column, int64_t first, int64_t count, T* out) {
    if constexpr (sizeof(T) == 1) {
      float values[kChunkElements];
      read_row(source, row, first, count, values);
      const float inverse = scales[column] > 0.0f ? 1.0f / scales[column] : 0.0f;
      int32_t total = 0;
      for (int64_t i = 0; i < count; ++i) {
        out[i] = quantised(values[i] * inverse);
        total += out[i];
      }
      offsets[column] += 128 * total;
    } else {
      read_row(source, row, first, count, out);
    }
  }
};

// Packs matrix rows [row0, row0 + rows) that lie in the section [begin, end) of the matrix, whose
// columns fill every `stride`-th half strip from `first_half` on.
template <class T>
void pack_section(const PackedMatrix& matrix, const Source& source, int64_t src_row0, int64_t row0,
                  int64_t rows, int64_t begin, int64_t end, int64_t first_half, int64_t stride) {
  const gemm::Layout layout = gemm::layout_of(matrix.format);
  const int64_t groups = layout.padded(matrix.k) / layout.group;
  const int64_t stop = std::min(row0 + rows, end);
  for (int64_t row = std::max(row0, begin); row < stop;) {
    const int64_t column = (row - begin) % kHalfStrip;
    const int64_t count = std::min(kHalfStrip - column, stop - row);
    const int64_t index = first_half + (row - begin) / kHalfStrip * stride;
    auto* half = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(matrix.data) +
                                             index / 2 * layout.strip_bytes(matrix.k)) +
                 index % 2 * kHalfStrip;
    const int64_t first_column = index * kHalfStrip;
    HalfStripWriter<T>{source, half, groups, gemm::scales_of(matrix) + first_column,
                       gemm::offsets_of(matrix) + first_column}
        .write(src_row0 + row - row0, count, column, row + count == end);
    row += count;
  }
}

// A last strip of which not even the second half exists: cleared by whoever packs the last row.
void clear_missing_half(const PackedMatrix& matrix) {
  const int64_t halves = ceil_div(matrix.n, kHalfStrip);
  if (matrix.glu || halves % 2 == 0) return;
  const gemm::Layout layout = gemm::layout_of(matrix.format);
  auto* line = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(matrix.data) +
                                           halves / 2 * layout.strip_bytes(matrix.k)) +
               kHalfStrip;
  const int64_t groups = layout.padded(matrix.k) / layout.group;
  for (int64_t g = 0; g < groups; ++g) std::fill_n(line + g * kStripColumns, kHalfStrip, 0u);
  if (!layout.has_scales) return;
  std::fill_n(gemm::scales_of(matrix) + halves * kHalfStrip, kHalfStrip, 0.0f);
  std::fill_n(gemm::offsets_of(matrix) + halves * kHalfStrip, kHalfStrip, 0);
}

template <class T>
void pack_format(const PackedMatrix& matrix, const Source& source, int64_t src_row0, int64_t row0,
                 int64_t rows) {
  const int64_t n = matrix.n;
  if (matrix.glu) {
    pack_section<T>(matrix, source, src_row0, row0, rows, 0, n / 2, 0, 2);
    pack_section<T>(matrix, source, src_row0 + std::max<int64_t>(n / 2 - row0, 0),
                    std::max(row0, n / 2), rows - std::max<int64_t>(n / 2 - row0, 0), n / 2, n, 1,
                    2);
  } else {
    pack_section<T>(matrix, source, src_row0, row0, rows, 0, n, 0, 1);
  }
  if (row0 + rows == n) clear_missing_half(matrix);
}

}  // namespace

size_t packed_bytes(Format format, int64_t n, int64_t k, bool glu) {
  const gemm::Layout layout = gemm::layout_of(format);
  const int64_t strip = layout.strip_bytes(k) + (layout.has_scales ? kStripColumns * 8 : 0);
  return static_cast<size_t>(gemm::strips_of(n, glu) * strip);
}

int64_t pack_row_multiple() { return kStripColumns; }

void pack_rows(const PackedMatrix& matrix, const void* src, DType src_dtype, bool transposed,
               int64_t src_rows, int64_t src_row0, int64_t row0, int64_t rows) {
  const Source source{src, src_dtype, transposed, src_rows, matrix.k};
  switch (matrix.format) {
    case Format::kF32:
      return pack_format<float>(matrix, source, src_row0, row0, rows);
    case Format::kBF16:
      return pack_format<uint16_t>(matrix, source, src_row0, row0, rows);
    case Format::kInt8A8:
    case Format::kInt8A16:
      return pack_format<int8_t>(matrix, source, src_row0, row0, rows);
  }
}

}  // namespace quire

#include "weights/packed_row.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "linear/layout.h"
#include "simd/simd.h"

namespace quire {

void unpack_row(const PackedMatrix& matrix, int64_t row, float* out) {
  const gemm::Layout layout = gemm::layout_of(matrix.format);
  const uint8_t* column = static_cast<const uint8_t*>(matrix.data) +
                          row / gemm::kStripColumns * layout.strip_bytes(matrix.k) +
                          row % gemm::kStripColumns * 4;
  // Neighbours in K lie a whole line of the strip apart.
  constexpr int64_t kLine = gemm::kStripColumns * 4;
  if (matrix.format == Format::kF32) {
    for (int64_t i = 0; i < matrix.k; ++i) std::memcpy(out + i, column + i * kLine, 4);
    return;
  }
  if (matrix.format == Format::kHeldF16) {
    const auto* strip = static_cast<const uint8_t*>(matrix.data) +
                        row / gemm::kStripColumns * layout.strip_bytes(matrix.k);
    for (int64_t i = 0; i < matrix.k; ++i) {
      uint16_t half;
      std::memcpy(&half, strip + gemm::f16_place(row % gemm::kStripColumns, i), 2);
      out[i] = gemm::f16_to_f32(half);
    }
    return;
  }
  if (is_grouped(matrix.format)) {
    const auto* strip = static_cast<const uint8_t*>(matrix.data) +
                        row / gemm::kStripColumns * layout.strip_bytes(matrix.k);
    const gemm::GroupedStrip grouped(matrix.format, matrix.k);
    const int32_t* order = gemm::order_of(matrix);
    if (order == nullptr) {
      grouped.weights(strip, row % gemm::kStripColumns, matrix.k, out);
      return;
    }
    std::vector<float> ordered(matrix.k);
    grouped.weights(strip, row % gemm::kStripColumns, matrix.k, ordered.data());
    const auto last = static_cast<uint32_t>(matrix.k - 1);
    for (int64_t i = 0; i < matrix.k; ++i) {
      out[std::min(static_cast<uint32_t>(order[i]), last)] = ordered[i];
    }
    return;
  }
  if (gemm::is_int4(matrix.format)) {
    const uint8_t* strip = static_cast<const uint8_t*>(matrix.data) +
                           row / gemm::kStripColumns * layout.strip_bytes(matrix.k);
    const float scale = gemm::scales_of(matrix)[row];
    for (int64_t i = 0; i < matrix.k; ++i) {
      out[i] = static_cast<float>(gemm::int4_weight(strip, row % gemm::kStripColumns, i)) * scale;
    }
    return;
  }
  if (layout.has_scales) {
    const float scale = gemm::scales_of(matrix)[row];
    for (int64_t i = 0; i < matrix.k; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(column[i / 4 * kLine + i % 4])) * scale;
    }
    return;
  }
  for (int64_t i = 0; i < matrix.k; ++i) {
    uint16_t half;
    std::memcpy(&half, column + i / 2 * kLine + i % 2 * 2, 2);
    out[i] = gemm::bf16_to_f32(half);
  }
}

}  // namespace quire

// The rotation of a head in an int4 cache. It spreads a few large numbers over all of the head, so
// that one scale suits all of its numbers.
#pragma once

#include <cmath>

#include "simd/vector.h"

namespace quire {

// Stages of a Hadamard transform in one vector of four: neighbours at a distance of one, then two.
QUIRE_INLINE gemm::F32x4 butterflies_of_four(gemm::F32x4 v) {
  const gemm::F32x4 near = {1.0f, -1.0f, 1.0f, -1.0f}, far = {1.0f, 1.0f, -1.0f, -1.0f};
  v = __builtin_shufflevector(v, v, 0, 0, 2, 2) + __builtin_shufflevector(v, v, 1, 1, 3, 3) * near;
  return __builtin_shufflevector(v, v, 0, 1, 0, 1) +
         __builtin_shufflevector(v, v, 2, 3, 2, 3) * far;
}

// One stage: numbers at a distance of `stride` become their sum and their difference.
template <class V>
QUIRE_INLINE void butterflies(float* row, int64_t count, int64_t stride) {
  constexpr int64_t kWidth = sizeof(V) / sizeof(float);
  for (int64_t i = 0; i < count; i += 2 * stride) {
    for (int64_t j = i; j < i + stride; j += kWidth) {
      const V a = gemm::load<V>(row + j), b = gemm::load<V>(row + j + stride);
      gemm::store(row + j, a + b);
      gemm::store(row + j + stride, a - b);
    }
  }
}

// Multiplies a row by a matrix that is its own inverse: Hadamard matrices, divided by the root of
// their size, for the largest powers of two that make up `dim`, a multiple of 32. Each number is
// summed in one order on every tier, so the same row gives the same bits.
inline void rotate_head(float* row, int64_t dim) {
  for (int64_t size; dim > 0; row += size, dim -= size) {
    for (size = 32; 2 * size <= dim;) size *= 2;
    for (int64_t i = 0; i < size; i += 4) {
      gemm::store(row + i, butterflies_of_four(gemm::load<gemm::F32x4>(row + i)));
    }
    for (int64_t stride : {4, 8}) butterflies<gemm::F32x4>(row, size, stride);
    for (int64_t stride = kLanes; stride < size; stride *= 2)
      butterflies<F32x16>(row, size, stride);
    const float unit = 1.0f / std::sqrt(static_cast<float>(size));
    for (int64_t i = 0; i < size; i += kLanes) gemm::store(row + i, load_f32(row + i) * unit);
  }
}

}  // namespace quire

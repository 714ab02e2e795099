// A row of x for a product of tiles of bfloat16.
#pragma once

#include <algorithm>
#include <cstring>

#include "linear/family.h"
#include "simd/simd.h"

namespace quire::gemm {

// 32 elements of one row, converted, zeros after the end of the row.
QUIRE_INLINE void pack_line(const Rows& x, const void* row, int64_t k, uint8_t* out) {
  const bool is_f32 = x.dtype == DType::kF32;
  const auto* from32 = static_cast<const float*>(row) + k;
  const auto* from16 = static_cast<const uint16_t*>(row) + k;
  const int64_t count = std::min<int64_t>(32, x.k - k);
  if (count == 32 && is_f32) {
    store(out, f32_to_bf16(load<F32x16>(from32)));
    store(out + 32, f32_to_bf16(load<F32x16>(from32 + 16)));
  } else if (count == 32) {
    std::memcpy(out, from16, 64);
  } else {
    uint16_t line[32] = {};
    for (int64_t i = 0; i < count; ++i) line[i] = is_f32 ? f32_to_bf16(from32[i]) : from16[i];
    std::memcpy(out, line, 64);
  }
}

}  // namespace quire::gemm

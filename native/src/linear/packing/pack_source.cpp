#include "linear/packing/pack_source.h"

#include <algorithm>
#include <cstring>

#include "linear/packing/gguf_blocks.h"
#include "simd/simd.h"

namespace quire::gemm {
namespace {

float as_f32(const Source& source, int64_t i) {
  if (source.dtype == DType::kF32) return static_cast<const float*>(source.data)[i];
  const uint16_t half = static_cast<const uint16_t*>(source.data)[i];
  return source.dtype == DType::kBF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

uint16_t as_bf16(const Source& source, int64_t i) {
  if (source.dtype == DType::kBF16) return static_cast<const uint16_t*>(source.data)[i];
  return f32_to_bf16(as_f32(source, i));
}

// `count` numbers that exist, from the blocks that they lie in.
void read_blocks(const Source& source, int64_t row, int64_t first, int64_t count, float* out) {
  const BlockKind& kind = *block_kind(source.dtype);
  const auto* from = static_cast<const uint8_t*>(source.data) + row * kind.row_bytes(source.k);
  float values[kMostBlockItems];
  for (int64_t done = 0; done < count;) {
    const int64_t at = first + done;
    const int64_t skipped = at % kind.items;
    const int64_t taken = std::min(kind.items - skipped, count - done);
    block_values(kind, from + kind.row_bytes(at - skipped), values);
    std::copy_n(values + skipped, taken, out + done);
    done += taken;
  }
}

}  // namespace

// The plain loops by type are there for the compiler to vectorise.
void read_row(const Source& source, int64_t row, int64_t first, int64_t count, float* out) {
  const int64_t have = std::clamp<int64_t>(source.k - first, 0, count);
  const int64_t at = source.index(row, first);
  if (is_blocks(source.dtype)) {
    read_blocks(source, row, first, have, out);
  } else if (source.transposed) {
    for (int64_t c = 0; c < have; ++c) out[c] = as_f32(source, source.index(row, first + c));
  } else if (source.dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(source.data) + at, have, out);
  } else {
    const auto* from = static_cast<const uint16_t*>(source.data) + at;
    const bool is_bf16 = source.dtype == DType::kBF16;
    if (is_bf16) {
      for (int64_t c = 0; c < have; ++c) out[c] = bf16_to_f32(from[c]);
    } else {
      for (int64_t c = 0; c < have; ++c) out[c] = f16_to_f32(from[c]);
    }
  }
  std::fill(out + have, out + count, 0.0f);
}

void read_row(const Source& source, int64_t row, int64_t first, int64_t count, uint16_t* out) {
  const int64_t have = std::clamp<int64_t>(source.k - first, 0, count);
  if (source.dtype == DType::kBF16 && !source.transposed) {
    std::copy_n(static_cast<const uint16_t*>(source.data) + source.index(row, first), have, out);
  } else if (is_blocks(source.dtype)) {
    float values[kMostBlockItems];
    for (int64_t c = 0; c < have; c += kMostBlockItems) {
      const int64_t n = std::min(kMostBlockItems, have - c);
      read_blocks(source, row, first + c, n, values);
      for (int64_t i = 0; i < n; ++i) out[c + i] = f32_to_bf16(values[i]);
    }
  } else {
    for (int64_t c = 0; c < have; ++c) out[c] = as_bf16(source, source.index(row, first + c));
  }
  std::fill(out + have, out + count, uint16_t{0});
}

void read_row(const Source& source, int64_t row, int64_t first, int64_t count, Float16* out) {
  const int64_t have = std::clamp<int64_t>(source.k - first, 0, count);
  const auto* from = static_cast<const Float16*>(source.data);
  for (int64_t c = 0; c < have; ++c) out[c] = from[source.index(row, first + c)];
  std::fill(out + have, out + count, Float16{});
}

// Magnitudes have the order of their bits; the loops are plain for the compiler again.
bool all_finite(const float* values, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    largest = std::max(largest, bits & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

bool all_finite(const uint16_t* values, int64_t count) {
  int16_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<int16_t>(values[i] & 0x7fff));
  }
  return largest < 0x7f80;
}

bool all_finite(const Float16* values, int64_t count) {
  int16_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<int16_t>(values[i].bits & 0x7fff));
  }
  return largest < 0x7c00;
}

WeightScale weight_scale(const Source& source, int64_t row, float limit) {
  constexpr int64_t kCount = 256;  // converted at a time
  float values[kCount];
  Extent extent;
  for (int64_t c = 0; c < source.k; c += kCount) {
    read_row(source, row, c, kCount, values);
    for (int64_t i = 0; i < kCount; i += kLanes) extent.add(load<F32x16>(values + i));
  }
  const float scale = extent.top() / limit + extent.bad();
  return {scale, scale > 0.0f ? 1.0f / scale : 0.0f};
}

}  // namespace quire::gemm

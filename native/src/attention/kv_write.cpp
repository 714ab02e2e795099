#include "attention/kv_write.h"

#include "attention/kernels/byte_scale.h"
#include "simd/transpose.h"
#include "simd/vector.h"

namespace quire {
namespace {

using Row = const float[kMaxHeadDim];

// Numbers i .. i + 15 of a row as bfloat16, each in the low half of a word.
QUIRE_INLINE U32x16 words(const float* row, int64_t i) {
  return gemm::widen(to_bf16(load_f32(row + i)));
}

// A token's row becomes integers of at most 127.
ByteScale byte_scale(const float* row, int64_t dim) {
  gemm::Extent extent;
  for (int64_t i = 0; i < dim; i += kLanes) extent.add(load_f32(row + i));
  return ByteScale(extent, 127.0f);
}

// Rows of 32-bit words, those of `count` tokens from `place` on, to their places among 16.
void scatter(const uint32_t* rows, int64_t row_words, int64_t columns, int place, int count,
             uint32_t* out) {
  if (count == kGroup) return gemm::transpose_group(rows, row_words, columns, out);
  for (int64_t c = 0; c < columns; ++c) {
    for (int t = 0; t < count; ++t) out[c * kGroup + place + t] = rows[t * row_words + c];
  }
}

float* scales_of(const KvSide& side, uint8_t* group) {
  return reinterpret_cast<float*>(group + side.data_bytes);
}

void write_byte_keys(const KvSide& side, uint8_t* group, int place, int count, Row* rows) {
  alignas(64) uint32_t quads[kGroup][kMaxHeadDim / 4];
  for (int t = 0; t < count; ++t) {
    const ByteScale scale = byte_scale(rows[t], side.padded_dim);
    auto* out = reinterpret_cast<int8_t*>(quads[t]);
    for (int64_t d = 0; d < side.padded_dim; d += kLanes) {
      gemm::store(out + d, gemm::bytes_of(scale.integers(load_f32(rows[t] + d))));
    }
    scales_of(side, group)[place + t] = scale.unit;
  }
  scatter(quads[0], kMaxHeadDim / 4, side.padded_dim / 4, place, count,
          reinterpret_cast<uint32_t*>(group));
}

void write_byte_values(const KvSide& side, uint8_t* group, int place, int count, Row* rows) {
  const int64_t dim = side.padded_dim;
  ByteScale scales[kGroup];
  for (int t = 0; t < count; ++t) {
    scales[t] = byte_scale(rows[t], dim);
    scales_of(side, group)[place + t] = scales[t].unit;
  }
  for (int quad = place / 4; quad <= (place + count - 1) / 4; ++quad) {
    const int begin = std::max(4 * quad - place, 0);
    const int end = std::min(4 * quad + 4 - place, count);
    uint32_t* out = reinterpret_cast<uint32_t*>(group) + quad * dim;
    for (int64_t d = 0; d < dim; d += kLanes) {
      U32x16 all = gemm::load<U32x16>(out + d);
      for (int t = begin; t < end; ++t) {
        const int shift = 8 * ((place + t) % 4);
        const U32x16 byte = gemm::as<U32x16>(scales[t].integers(load_f32(rows[t] + d))) & 0xffu;
        all = (all & ~(0xffu << shift)) | byte << shift;
      }
      gemm::store(out + d, all);
    }
  }
}

}  // namespace

void write_keys(const KvSide& side, uint8_t* group, int place, int count,
                const float (*rows)[kMaxHeadDim]) {
  if (side.dtype == QUIRE_INT8) return write_byte_keys(side, group, place, count, rows);
  auto* out = reinterpret_cast<uint32_t*>(group);
  if (side.dtype == QUIRE_F32) {
    const auto* whole = reinterpret_cast<const uint32_t*>(rows[0]);
    return scatter(whole, kMaxHeadDim, side.padded_dim, place, count, out);
  }
  alignas(64) uint32_t pairs[kGroup][kMaxHeadDim / 2];
  for (int t = 0; t < count; ++t) {
    auto* narrow = reinterpret_cast<uint16_t*>(pairs[t]);
    for (int64_t d = 0; d < side.padded_dim; d += kLanes) {
      gemm::store(narrow + d, to_bf16(load_f32(rows[t] + d)));
    }
  }
  scatter(pairs[0], kMaxHeadDim / 2, side.padded_dim / 2, place, count, out);
}

void write_values(const KvSide& side, uint8_t* group, int place, int count,
                  const float (*rows)[kMaxHeadDim]) {
  if (side.dtype == QUIRE_INT8) return write_byte_values(side, group, place, count, rows);
  const int64_t dim = side.padded_dim;
  if (side.dtype == QUIRE_F32) {
    for (int t = 0; t < count; ++t) {
      std::memcpy(reinterpret_cast<float*>(group) + (place + t) * dim, rows[t], dim * 4);
    }
    return;
  }
  for (int pair = place / 2; pair <= (place + count - 1) / 2; ++pair) {
    const int low = 2 * pair - place;  // row of the pair's even token; out of range: keep what is
    const int high = low + 1;
    uint32_t* out = reinterpret_cast<uint32_t*>(group) + pair * dim;
    for (int64_t d = 0; d < dim; d += kLanes) {
      U32x16 both = gemm::load<U32x16>(out + d);
      if (low >= 0) both = (both & 0xffff0000u) | words(rows[low], d);
      if (high < count) both = (both & 0x0000ffffu) | words(rows[high], d) << 16;
      gemm::store(out + d, both);
    }
  }
}

}  // namespace quire

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

// How numbers become integers of kBits, and what these are multiplied by.
//
// Equal steps, of which none is lost: zero is the edge of two. The limit is below 128 so that the
// largest number, which is on the edge of the last step, is not rounded out of it.
template <int kBits>
struct Codes : ByteScale {
  Codes() = default;
  explicit Codes(const gemm::Extent& extent) : ByteScale(extent, 127.9f) {}

  QUIRE_INLINE I32x16 integers(F32x16 v) const {
    return gemm::nearest(v * (inverse / (1 << (8 - kBits))) - 0.5f);
  }
};

template <>
struct Codes<8> : ByteScale {
  Codes() = default;
  explicit Codes(const gemm::Extent& extent) : ByteScale(extent, 127.0f) {}
};

template <int kBits>
Codes<kBits> codes_of(const float* row, int64_t dim) {
  gemm::Extent extent;
  for (int64_t i = 0; i < dim; i += kLanes) extent.add(load_f32(row + i));
  return Codes<kBits>(extent);
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
    const auto codes = codes_of<8>(rows[t], side.padded_dim);
    auto* out = reinterpret_cast<int8_t*>(quads[t]);
    for (int64_t d = 0; d < side.padded_dim; d += kLanes) {
      gemm::store(out + d, gemm::bytes_of(codes.integers(load_f32(rows[t] + d))));
    }
    scales_of(side, group)[place + t] = codes.unit;
  }
  scatter(quads[0], kMaxHeadDim / 4, side.padded_dim / 4, place, count,
          reinterpret_cast<uint32_t*>(group));
}

void write_int4_keys(const KvSide& side, uint8_t* group, int place, int count, Row* rows) {
  alignas(64) uint32_t words[kGroup][kMaxHeadDim / 8];
  auto* last_bits = reinterpret_cast<uint32_t*>(group + side.word_bytes) + place;
  for (int t = 0; t < count; ++t, ++last_bits) {
    const auto codes = codes_of<5>(rows[t], side.padded_dim);
    alignas(64) int8_t bytes[kMaxHeadDim];
    for (int64_t d = 0; d < side.padded_dim; d += kLanes) {
      gemm::store(bytes + d, gemm::bytes_of(codes.integers(load_f32(rows[t] + d))));
    }
    uint32_t last = 0;
    for (int64_t quad = 0; quad < side.padded_dim / 4; ++quad) {
      uint32_t all;
      std::memcpy(&all, bytes + 4 * quad, 4);
      const uint32_t upper = all >> 1 & 0x0f0f0f0fu, lower = all & 0x01010101u;
      words[t][quad / 2] = quad % 2 == 0 ? upper : words[t][quad / 2] | upper << 4;
      last |= lower << (quad % 8 < 4 ? 3 - quad % 4 : 7 - quad % 4);
      if (quad % 8 == 7) {
        last_bits[quad / 8 * kGroup] = last;
        last = 0;
      }
    }
    scales_of(side, group)[place + t] = codes.unit;
  }
  scatter(words[0], kMaxHeadDim / 8, side.padded_dim / 8, place, count,
          reinterpret_cast<uint32_t*>(group));
}

template <int kBits>
void write_coded_values(const KvSide& side, uint8_t* group, int place, int count, Row* rows) {
  constexpr int kNumbers = 32 / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  const int64_t dim = side.padded_dim;
  Codes<kBits> codes[kGroup];
  for (int t = 0; t < count; ++t) {
    codes[t] = codes_of<kBits>(rows[t], dim);
    scales_of(side, group)[place + t] = codes[t].unit;
  }
  for (int line = place / kNumbers; line <= (place + count - 1) / kNumbers; ++line) {
    const int begin = std::max(kNumbers * line - place, 0);
    const int end = std::min(kNumbers * line + kNumbers - place, count);
    uint32_t* out = reinterpret_cast<uint32_t*>(group) + line * dim;
    for (int64_t d = 0; d < dim; d += kLanes) {
      U32x16 all = gemm::load<U32x16>(out + d);
      for (int t = begin; t < end; ++t) {
        const int shift = kv_shift(kNumbers, (place + t) % kNumbers);
        const U32x16 code = gemm::as<U32x16>(codes[t].integers(load_f32(rows[t] + d))) & kMask;
        all = (all & ~(kMask << shift)) | code << shift;
      }
      gemm::store(out + d, all);
    }
  }
}

}  // namespace

void write_keys(const KvSide& side, uint8_t* group, int place, int count,
                const float (*rows)[kMaxHeadDim]) {
  if (side.dtype == QUIRE_INT8) return write_byte_keys(side, group, place, count, rows);
  if (side.dtype == QUIRE_INT4) return write_int4_keys(side, group, place, count, rows);
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
  if (side.dtype == QUIRE_INT8) return write_coded_values<8>(side, group, place, count, rows);
  if (side.dtype == QUIRE_INT4) return write_coded_values<4>(side, group, place, count, rows);
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

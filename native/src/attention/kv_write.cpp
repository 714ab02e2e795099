#include "attention/kv_write.h"

#include "ops/vector.h"

namespace quire {
namespace {

// Numbers i .. i + 15 of a row as bfloat16, each in the low half of a word.
QUIRE_INLINE U32x16 words(const float* row, int64_t i) {
  return __builtin_convertvector(to_bf16(load_f32(row + i)), U32x16);
}

}  // namespace

void write_keys(const KvLayout& layout, uint8_t* group, int place, int count,
                const float (*rows)[kMaxHeadDim]) {
  if (layout.dtype == QUIRE_F32) {
    float* out = reinterpret_cast<float*>(group) + place;
    for (int64_t d = 0; d < layout.padded_dim; ++d) {
      for (int t = 0; t < count; ++t) out[d * kGroup + t] = rows[t][d];
    }
    return;
  }
  alignas(64) uint16_t narrow[kGroup][kMaxHeadDim];
  for (int t = 0; t < count; ++t) {
    for (int64_t d = 0; d < layout.padded_dim; d += kLanes) {
      gemm::store(narrow[t] + d, to_bf16(load_f32(rows[t] + d)));
    }
  }
  uint32_t* out = reinterpret_cast<uint32_t*>(group) + place;
  for (int64_t pair = 0; pair < layout.padded_dim / 2; ++pair) {
    for (int t = 0; t < count; ++t) {
      std::memcpy(out + pair * kGroup + t, narrow[t] + 2 * pair, sizeof *out);
    }
  }
}

void write_values(const KvLayout& layout, uint8_t* group, int place, int count,
                  const float (*rows)[kMaxHeadDim]) {
  const int64_t dim = layout.padded_dim;
  if (layout.dtype == QUIRE_F32) {
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

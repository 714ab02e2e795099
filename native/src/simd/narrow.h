// Registers of bytes and halves where there is no AVX: by NEON, or one by one.
#pragma once

#include "simd/simd.h"

namespace quire::gemm {

typedef uint8_t BytesPart __attribute__((vector_size(kPartLanes * 4)));

#if defined(__ARM_NEON)
// As many bytes as a register has words, each in a word of its own.
QUIRE_INLINE U32Part widen_some_bytes(const uint8_t* at) {
  uint32_t four;
  std::memcpy(&four, at, sizeof four);
  return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}

// As many float16s.
QUIRE_INLINE F32Part widen_some_halves(const uint8_t* at) {
  return vcvt_f32_f16((float16x4_t)load<uint16x4_t>(at));
}

// A table's numbers of codes below 16.
QUIRE_INLINE BytesPart look_up(BytesPart table, BytesPart codes) {
  return vqtbl1q_u8(table, codes);
}

// The same of words, of which the lowest 4 bits count.
QUIRE_INLINE F32Part look_up(const float (&table)[16], U32Part words) {
  const uint8x16x4_t bytes = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table));
  const U32Part places = (words & 15u) * 0x04040404u + 0x03020100u;
  return (F32Part)vqtbl4q_u8(bytes, (uint8x16_t)places);
}

// The sum of sixteen.
QUIRE_INLINE int32_t total_of(const int8_t* bytes) { return vaddlvq_s8(vld1q_s8(bytes)); }
#else
QUIRE_INLINE U32Part widen_some_bytes(const uint8_t* at) {
  typedef uint8_t Bytes __attribute__((vector_size(kPartLanes)));
  return __builtin_convertvector(load<Bytes>(at), U32Part);
}

QUIRE_INLINE F32Part widen_some_halves(const uint8_t* at) {
  F32Part out;
  for (int i = 0; i < kPartLanes; ++i) {
    uint16_t bits;
    std::memcpy(&bits, at + 2 * i, 2);
    out[i] = f16_to_f32(bits);
  }
  return out;
}

QUIRE_INLINE BytesPart look_up(BytesPart table, BytesPart codes) {
  BytesPart out;
  for (int i = 0; i < static_cast<int>(sizeof out); ++i) out[i] = table[codes[i]];
  return out;
}

QUIRE_INLINE F32Part look_up(const float (&table)[16], U32Part words) {
  F32Part out;
  for (int i = 0; i < kPartLanes; ++i) out[i] = table[words[i] & 15];
  return out;
}

QUIRE_INLINE int32_t total_of(const int8_t* bytes) {
  int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += bytes[i];
  return total;
}
#endif

}  // namespace quire::gemm

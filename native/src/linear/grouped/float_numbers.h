// Codes that stand for floats: E4M3, and bitsandbytes' tables of 16 (quire_table).
#pragma once

#include <cstdint>

#include "linear/int4_weights.h"
#include "linear/vector_products.h"
#include "simd/simd.h"

namespace quire::gemm {

// A sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity. If all bits but the sign are
// set, it is NaN; this and the functions below return 480 for it, and packing reports it.
constexpr float e4m3_number(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  float size = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) / 512.0f;
  for (int i = 1; i < exponent; ++i) size *= 2.0f;
  return (code & 128) != 0 ? -size : size;
}

constexpr bool is_e4m3_number(int code) { return (code & 127) != 127; }

// Words whose upper byte is a code, as float32: the bits of a code are those of a float32 whose
// exponent has another bias.
QUIRE_INLINE Vector e4m3_of_words(BitVector words) {
  typedef int32_t Words __attribute__((vector_size(sizeof(BitVector))));
  const auto bits = (BitVector)((Words)words >> 4) & 0x87f00000u;
  return (Vector)bits * 0x1p120f;
}

// Bytes of some columns.
QUIRE_INLINE Vector e4m3_of_bytes(const uint8_t* at) {
  return e4m3_of_words((BitVector)(widen_codes(at) << 24));
}

// Source: bitsandbytes, functional.py, get_4bit_type: each divided by the largest, in float32.
constexpr float kNf4[16] = {-1.0f,
                            -0.6961928009986877f,
                            -0.5250730514526367f,
                            -0.39491748809814453f,
                            -0.28444138169288635f,
                            -0.18477343022823334f,
                            -0.09105003625154495f,
                            0.0f,
                            0.07958029955625534f,
                            0.16093020141124725f,
                            0.24611230194568634f,
                            0.33791524171829224f,
                            0.44070982933044434f,
                            0.5626170039176941f,
                            0.7229568362236023f,
                            1.0f};
constexpr float kFp4[16] = {0.0f,          0.0625f / 12.0f,  8.0f / 12.0f,  12.0f / 12.0f,
                            4.0f / 12.0f,  6.0f / 12.0f,     2.0f / 12.0f,  3.0f / 12.0f,
                            -0.0f,         -0.0625f / 12.0f, -8.0f / 12.0f, -12.0f / 12.0f,
                            -4.0f / 12.0f, -6.0f / 12.0f,    -2.0f / 12.0f, -3.0f / 12.0f};

constexpr bool is_float_table(int32_t table) { return table >= QUIRE_TABLE_E4M3; }

// What a code of such a table stands for.
constexpr float float_number(int32_t table, int code) {
  if (table == QUIRE_TABLE_E4M3) return e4m3_number(code);
  return table == QUIRE_TABLE_NF4 ? kNf4[code] : kFp4[code];
}

}  // namespace quire::gemm

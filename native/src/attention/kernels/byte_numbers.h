// The integers that q and the weights P become over an int8 or int4 cache, and how these meet the
// bytes of K and V: four bytes of a column, which follow each other along the summed dimension,
// meet kUnits broadcasts of 4 bytes of a row.
#pragma once

#include <type_traits>

#include "attention/kernels/byte_weights.h"
#include "attention/kv_write.h"
#include "linear/int8_products.h"

namespace quire {

using IntSum = gemm::IntVector;

#if defined(QUIRE_DOTS_OF_BYTES)
// Where the machine multiplies whole bytes: planes of bytes, each with a sum of its own. Two of
// them, high * 256 + low, are numbers of 16 bits.
//
// P is unsigned by nature, V and K are signed. Where the instruction multiplies unsigned by signed
// bytes, K is shifted by 128 on its way to the register, and the sums of q * K begin at -128 times
// the sum of q's plane. Where both have a sign, P has one bit less, and a lower plane is negative
// half of the time.
template <int kPlanes>
struct BytePlanes {
  static constexpr int kBytes = kPlanes;  // of a number
  static constexpr int kUnits = kPlanes;
  static constexpr int kSums = kPlanes;
  static constexpr int kMostColumns = 8;  // registers of V that meet the same weights
  // A group has half as many bytes as one of bfloat16, and memory is as far away.
  static constexpr int kGroupsAhead = 12;
  static constexpr int32_t kMostOfWeights = gemm::kSignedDots ? 127 * 256 : 65535;
  using Weights = std::conditional_t<kPlanes == 1, SpanWeights, ChunkWeights<BytePlanes>>;

  static constexpr int sum_of(int unit) { return unit; }
  // Where a unit of numbers i .. i + 3 lies in a row of `length` numbers.
  static constexpr int64_t place(int unit, int64_t i, int64_t length) { return unit * length + i; }

  static QUIRE_INLINE IntSum key_operand(IntSum line, int /*unit*/) {
    return line ^ (gemm::kFlipSigned - IntSum{});
  }
  static QUIRE_INLINE IntSum value_operand(IntSum line, int /*unit*/) { return line; }
  static QUIRE_INLINE IntSum add_key(IntSum sum, IntSum key, IntSum q) {
    return gemm::dot_bytes(sum, key, q);
  }
  static QUIRE_INLINE IntSum add_value(IntSum sum, IntSum value, IntSum weight) {
    return gemm::dot_bytes(sum, weight, value);
  }

  // Puts 16 numbers of q from `i` on into a row of `length`, and adds them to the sums of planes.
  static QUIRE_INLINE void put_query(uint8_t* row, int64_t length, int64_t i, I32x16 whole,
                                     I32x16 (&sums)[kSums]) {
    I32x16 high = whole;
    if constexpr (kPlanes == 2) {
      high = (whole + 128) >> 8;
      const I32x16 low = whole - high * 256;
      gemm::store(row + length + i, gemm::bytes_of(low));
      sums[1] += low;
    }
    gemm::store(row + i, gemm::bytes_of(high));
    sums[0] += high;
  }
  static int32_t first_sum(int32_t sum_of_plane) {
    return gemm::kSignedDots ? 0 : -128 * sum_of_plane;
  }
  static QUIRE_INLINE void put_weights(uint8_t* row, int64_t i, I32x16 whole) {
    constexpr int32_t kRoundUpper = gemm::kSignedDots ? 128 : 0;
    gemm::store(row + i, gemm::unsigned_bytes_of((whole + kRoundUpper) >> 8));
    gemm::store(row + kWeightStride + i, gemm::unsigned_bytes_of(whole & 255));
  }
};
#else
// Elsewhere: words of 16 bits, which meet the even bytes of four, widened in the register, and then
// the odd ones.
struct Words {
  static constexpr int kBytes = 2;
  static constexpr int kUnits = 2;
  static constexpr int kSums = 1;
  static constexpr int kMostColumns = 2;  // with more, both halves of V do not stay in registers
  static constexpr int kGroupsAhead = kChunkGroups;  // V is read in many passes
  static constexpr int32_t kMostOfWeights = 127 * 256;
  using Weights = ChunkWeights<Words>;
  static_assert(int64_t{127 * 256} * 128 * std::max<int64_t>(kMaxHeadDim, kChunk) < int64_t{1}
                                                                                        << 31);

  static constexpr int sum_of(int /*unit*/) { return 0; }
  static constexpr int64_t place(int unit, int64_t i, int64_t /*length*/) {
    return kBytes * i + 4 * unit;
  }

  static QUIRE_INLINE IntSum key_operand(IntSum line, int unit) {
    typedef int16_t Pairs __attribute__((vector_size(sizeof(IntSum))));
    const Pairs bytes = (Pairs)line;
    return (IntSum)((unit == 0 ? bytes << 8 : bytes) >> 8);
  }
  static QUIRE_INLINE IntSum value_operand(IntSum line, int unit) {
    return key_operand(line, unit);
  }
  static QUIRE_INLINE IntSum add_key(IntSum sum, IntSum key, IntSum q) {
    return gemm::Int8Product<1>::multiply_add(sum, q, key);
  }
  static QUIRE_INLINE IntSum add_value(IntSum sum, IntSum value, IntSum weight) {
    return add_key(sum, value, weight);
  }

  static QUIRE_INLINE void put_query(uint8_t* row, int64_t /*length*/, int64_t i, I32x16 whole,
                                     I32x16 (&)[kSums]) {
    put_weights(row, i, whole);
  }
  static int32_t first_sum(int32_t) { return 0; }
  // Numbers 0 and 2 of four, then 1 and 3.
  static QUIRE_INLINE void put_weights(uint8_t* row, int64_t i, I32x16 whole) {
    constexpr uint64_t kLowHalves = 0x0000ffff0000ffff;
    uint64_t pairs[kLanes / 2], quads[kLanes / 4];
    std::memcpy(pairs, &whole, sizeof pairs);
#pragma GCC unroll 4
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      quads[quad] = (pairs[2 * quad] & kLowHalves) | (pairs[2 * quad + 1] & kLowHalves) << 16;
    }
    std::memcpy(row + kBytes * i, quads, sizeof quads);
  }
};
#endif

}  // namespace quire

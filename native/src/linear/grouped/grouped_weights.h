// Grouped weights: what a format's number says, and how they lie in a strip (quire_grouping).
//
// A strip begins with what its groups have, each of these at a multiple of 64 bytes and there only
// if the format has it: scales [groups][32], zeros [groups][32] bytes, minima [groups][32]. Nested
// scales and minima are bytes; after each of the two are float16s [256 of K][32]. Then the codes. Of 4 bits: [K / 8][32 columns][4 bytes], the lower halves of the bytes are the first
// four of 8 of K, the upper halves the others. Of 8 bits: [K / 4][32 columns][4 bytes].
#pragma once

#include <cstring>

#include "linear/family.h"
#include "simd/simd.h"

namespace quire::gemm {

// Products multiply tables without signs: less than nothing is taken off with the zero.
struct Table {
  uint8_t numbers[16];
  int32_t zero;  // table number - zero is what the code stands for
};

// Source: ggml-common.h, kvalues_iq4nl and kvalues_mxfp4; 128 is added to both.
constexpr Table kTables[] = {
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 0},
    {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 8},
    {{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}, 128},
    {{128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116}, 128},
    {{}, 128},  // the code itself
};

struct Grouping {
  int64_t group;
  int32_t table;
  bool half;
  bool zeros;
  bool minima;
  bool nested;

  explicit Grouping(Format format) {
    const auto bits = static_cast<int32_t>(format);
    group = int64_t{1} << (bits >> QUIRE_GROUP_SHIFT & 15);
    table = bits >> QUIRE_TABLE_SHIFT & 7;
    half = bits & QUIRE_GROUPS_HALF;
    zeros = bits & QUIRE_GROUPS_ZEROS;
    minima = bits & QUIRE_GROUPS_MINIMA;
    nested = bits & QUIRE_GROUPS_NESTED;
    known_ = bits >= 0 && bits < 2 * QUIRE_GROUPS_NESTED && group >= 16 && group <= 128 &&
             table <= QUIRE_TABLE_S8 && !(nested && half);
  }

  bool is_known() const { return known_; }
  bool is_wide() const { return table == QUIRE_TABLE_S8; }
  int64_t item_bytes() const { return nested ? 1 : half ? 2 : 4; }
  float number(const uint8_t* from, int64_t index) const {
    if (half) {
      uint16_t bits;
      std::memcpy(&bits, from + 2 * index, 2);
      return f16_to_f32(bits);
    }
    float value;
    std::memcpy(&value, from + 4 * index, 4);
    return value;
  }

 private:
  bool known_;
};

constexpr int64_t kNestDepth = 256;

struct GroupedStrip {
  Grouping grouping;
  int64_t groups;
  int64_t nests;
  int64_t scale_nests_at;
  int64_t zeros_at;
  int64_t minima_at;
  int64_t minimum_nests_at;
  int64_t codes_at;
  int64_t bytes;

  GroupedStrip(Format format, int64_t k)
      : grouping(format),
        groups(ceil_div(k, grouping.group)),
        nests(grouping.nested ? ceil_div(k, kNestDepth) : 0) {
    const int64_t columns = groups * kStripColumns;
    const int64_t numbers = round_up(columns * grouping.item_bytes(), 64);
    const int64_t nest_bytes = nests * kStripColumns * 2;
    scale_nests_at = numbers;
    zeros_at = scale_nests_at + nest_bytes;
    minima_at = zeros_at + (grouping.zeros ? round_up(columns, 64) : 0);
    minimum_nests_at = minima_at + (grouping.minima ? numbers : 0);
    codes_at = minimum_nests_at + (grouping.minima ? nest_bytes : 0);
    const int64_t codes = groups * grouping.group * kStripColumns;
    bytes = codes_at + (grouping.is_wide() ? codes : codes / 2);
  }

  // Where the byte with the code of (column, k) lies, and from which bit on the code is in it.
  int64_t code_at(int64_t column, int64_t k) const {
    const int64_t line = k / (grouping.is_wide() ? 4 : 8);
    return codes_at + line * kStripColumns * 4 + column * 4 + k % 4;
  }
  int code_shift(int64_t k) const { return grouping.is_wide() || k % 8 < 4 ? 0 : 4; }

  // The scale or the minimum of a group, which lie from `numbers_at` on, those that they are
  // multiplied by from `nests_at` on.
  float number(const uint8_t* strip, int64_t numbers_at, int64_t nests_at, int64_t column,
               int64_t group) const {
    const int64_t index = group * kStripColumns + column;
    if (!grouping.nested) return grouping.number(strip + numbers_at, index);
    const int64_t nest = group * grouping.group / kNestDepth * kStripColumns + column;
    uint16_t bits;
    std::memcpy(&bits, strip + nests_at + 2 * nest, 2);
    return f16_to_f32(bits) * static_cast<float>(static_cast<int8_t>(strip[numbers_at + index]));
  }

  float weight(const uint8_t* strip, int64_t column, int64_t k) const {
    const Table& table = kTables[grouping.table];
    const int32_t code = strip[code_at(column, k)] >> code_shift(k);
    const int64_t group = k / grouping.group;
    int32_t whole = (grouping.is_wide() ? code : table.numbers[code & 15]) - table.zero;
    if (grouping.zeros) whole -= strip[zeros_at + group * kStripColumns + column];
    const float value =
        static_cast<float>(whole) * number(strip, 0, scale_nests_at, column, group);
    if (!grouping.minima) return value;
    return value + number(strip, minima_at, minimum_nests_at, column, group);
  }
};

}  // namespace quire::gemm

// Grouped weights: what a format's number says, and how they lie in a strip (quire_grouping).
//
// A strip is a row of chunks of 256 of K. A chunk begins with what its groups have, each of these
// there only if the format has it: scales [groups][32], zeros [groups][32] bytes, minima
// [groups][32]. Nested scales and minima are bytes; after each of the two are float16s [32], of the
// whole chunk. After scales of E4M3, bytes too, is [32] float32 that they are divided by. Then the
// codes. So a strip is read from its first byte to its last. In a shorter last chunk the codes
// begin at the same place, and end with its last group. After all strips is the order of the
// columns, [k] int32, if the format has one.
//
// Codes lie in steps of K, each some lines of [32 columns][4 bytes]. Of 8 bits: four of K in a
// line; of E4M3 the second and third change places, so that every other byte is a pair. Of 4 bits:
// eight of K in a line, the lower halves of its bytes the first four, the upper halves the others.
// Of 5 and 6 bits: 32 or 16 of K in lines of their lower 4 bits, and one line with the upper ones,
// of each four of K in bits of their own.
#pragma once

#include <algorithm>
#include <cstring>

#include "linear/family.h"
#include "linear/grouped/float_numbers.h"
#include "simd/simd.h"

namespace quire::gemm {

// Products multiply tables without signs: less than nothing is taken off with the zero. Of codes
// that stand for floats there are only the bits.
struct Table {
  int bits;
  int32_t zero;         // table number - zero is what the code stands for
  uint8_t numbers[16];  // of 4 bits; others are the code itself

  int32_t whole(int32_t code) const { return (bits == 4 ? numbers[code] : code) - zero; }
};

// Source: ggml-common.h, kvalues_iq4nl and kvalues_mxfp4; 128 and 12 are added to them.
constexpr Table kTables[] = {
    {4, 0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
    {4, 8, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
    {4, 128, {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}},
    {4, 12, {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}},
    {8, 128, {}},
    {6, 32, {}},
    {5, 0, {}},
    {5, 16, {}},
    {8, 0, {}},
    {4, 0, {}},
    {4, 0, {}},
};

constexpr int32_t kNumTables = sizeof kTables / sizeof *kTables;

// Which byte of a word has each of four of K, in E4M3; and the other way round.
constexpr int kPairedBytes[] = {0, 2, 1, 3};

// The largest number of a table of 4 bits.
constexpr int largest_of(int table) {
  int largest = 0;
  for (const uint8_t number : kTables[table].numbers) largest = number > largest ? number : largest;
  return largest;
}

// Whether 8-bit activations with one scale for each row meet these numbers.
constexpr bool is_of_rows(int table) {
  return table == QUIRE_TABLE_U4 || table == QUIRE_TABLE_S4 || table == QUIRE_TABLE_S8;
}

// The group of codes of so many bits where blocks of activations have scales.
constexpr int usual_group(int bits) { return bits == 6 ? 16 : 32; }

constexpr int64_t kLineBytes = kStripColumns * 4;

// A step of codes of so many bits.
struct CodeStep {
  int bits;
  int log2_depth;
  int64_t depth;      // of K
  int64_t low_lines;  // of 4 bits, or of 8
  int64_t lines;      // and one with upper bits

  explicit constexpr CodeStep(int bits_)
      : bits(bits_),
        log2_depth(bits == 8   ? 2
                   : bits == 6 ? 4
                   : bits == 5 ? 5
                               : 3),
        depth(int64_t{1} << log2_depth),
        low_lines(bits == 8 ? 1 : depth / 8),
        lines(low_lines + (bits == 5 || bits == 6 ? 1 : 0)) {}

  constexpr int64_t bytes_of(int64_t k) const { return (k >> log2_depth) * lines * kLineBytes; }
};

struct Grouping {
  int64_t group;
  int32_t table;
  bool half;
  bool zeros;
  bool minima;
  bool nested;
  bool e4m3;  // scales
  bool ordered;

  explicit Grouping(Format format) {
    const auto bits = static_cast<int32_t>(format);
    group = int64_t{1} << (bits >> QUIRE_GROUP_SHIFT & 15);
    table = bits >> QUIRE_TABLE_SHIFT & 15;
    half = bits & QUIRE_GROUPS_HALF;
    zeros = bits & QUIRE_GROUPS_ZEROS;
    minima = bits & QUIRE_GROUPS_MINIMA;
    nested = bits & QUIRE_GROUPS_NESTED;
    e4m3 = bits & QUIRE_GROUPS_E4M3;
    ordered = bits & QUIRE_GROUPS_ORDERED;
    known_ = bits >= 0 && bits < 2 * QUIRE_GROUPS_ORDERED && group >= 16 && group <= 128 &&
             half + nested + e4m3 <= 1 && !(e4m3 && minima) && table < kNumTables &&
             group >= CodeStep(kTables[table].bits).depth && is_of_its_kind(format);
  }

  bool is_known() const { return known_; }
  int64_t item_bytes() const { return nested || e4m3 ? 1 : half ? 2 : 4; }
  // Of the number of a chunk that nested ones are multiplied by, or those of E4M3 divided by.
  int64_t nest_bytes() const { return nested ? 2 : e4m3 ? 4 : 0; }
  float number(const uint8_t* from, int64_t index) const {
    if (e4m3) return e4m3_number(from[index]);
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
  // Floats have a scale as float32 and nothing else, and only E4M3 is multiplied as bfloat16. With
  // 8-bit activations there are the tables and groups that checkpoints have (quire.h).
  bool is_of_its_kind(Format format) const {
    const bool is_plain = !half && !zeros && !minima && !nested && !e4m3;
    if (is_float_table(table) != is_grouped_float(format)) return false;
    switch (kind_of(format)) {
      case Format::kGroupedA8:
        return is_of_rows(table);
      case Format::kGroupedA8Blocks:
        return group == usual_group(kTables[table].bits) ||
               (table == QUIRE_TABLE_E2M1 && group == 16);
      case Format::kGroupedBf16:
        return is_plain && table == QUIRE_TABLE_E4M3;
      default:
        return is_plain || !is_grouped_float(format);
    }
  }

  bool known_;
};

constexpr int64_t kChunkDepth = 256;

struct GroupedStrip {
  Grouping grouping;
  CodeStep step;
  int64_t groups;
  int64_t chunk_groups;
  // Within a chunk.
  int64_t scale_nests_at;
  int64_t zeros_at;
  int64_t minima_at;
  int64_t minimum_nests_at;
  int64_t codes_at;

  int64_t chunk_bytes;
  int64_t bytes;

  GroupedStrip(Format format, int64_t k)
      : grouping(format),
        step(kTables[grouping.table].bits),
        groups(ceil_div(k, grouping.group)),
        chunk_groups(kChunkDepth / grouping.group) {
    const int64_t columns = chunk_groups * kStripColumns;
    const int64_t numbers = columns * grouping.item_bytes();
    const int64_t nest_bytes = kStripColumns * grouping.nest_bytes();
    scale_nests_at = numbers;
    zeros_at = scale_nests_at + nest_bytes;
    minima_at = zeros_at + (grouping.zeros ? columns : 0);
    minimum_nests_at = minima_at + (grouping.minima ? numbers : 0);
    codes_at = minimum_nests_at + (grouping.minima ? nest_bytes : 0);
    chunk_bytes = codes_at + step.bytes_of(kChunkDepth);
    const int64_t rest = groups % chunk_groups;
    bytes = groups / chunk_groups * chunk_bytes +
            (rest > 0 ? codes_at + step.bytes_of(rest * grouping.group) : 0);
  }

  int64_t chunks() const { return ceil_div(groups, chunk_groups); }
  int64_t chunk_of(int64_t group) const { return group / chunk_groups * chunk_bytes; }
  // Where a column's number of a group lies in the chunk, in numbers.
  int64_t index_of(int64_t group, int64_t column) const {
    return group % chunk_groups * kStripColumns + column;
  }

  int32_t code(const uint8_t* strip, int64_t column, int64_t k) const {
    const int64_t within = k & (step.depth - 1);
    const uint8_t* chunk = strip + k / kChunkDepth * chunk_bytes;
    const uint8_t* word = chunk + codes_at + step.bytes_of(k % kChunkDepth - within) + column * 4;
    if (grouping.table == QUIRE_TABLE_E4M3) return word[kPairedBytes[k % 4]];
    const uint8_t* first = word + k % 4;
    if (step.bits == 8) return *first;
    const int low = first[within / 8 * kLineBytes] >> (within % 8 < 4 ? 0 : 4) & 15;
    if (step.bits == 4) return low;
    const int upper = step.bits - 4;
    const int high = first[step.low_lines * kLineBytes] >> (upper * (within / 4));
    return low | (high & ((1 << upper) - 1)) << 4;
  }

  // The scale or the minimum of a group, which lie from `numbers_at` on, those that they are
  // multiplied by from `nests_at` on.
  float number(const uint8_t* strip, int64_t numbers_at, int64_t nests_at, int64_t column,
               int64_t group) const {
    const uint8_t* chunk = strip + chunk_of(group);
    const int64_t index = index_of(group, column);
    if (grouping.e4m3) {
      float divisor;
      std::memcpy(&divisor, chunk + nests_at + 4 * column, 4);
      return grouping.number(chunk + numbers_at, index) / divisor;
    }
    if (!grouping.nested) return grouping.number(chunk + numbers_at, index);
    uint16_t bits;
    std::memcpy(&bits, chunk + nests_at + 2 * column, 2);
    return f16_to_f32(bits) * static_cast<float>(static_cast<int8_t>(chunk[numbers_at + index]));
  }

  // All weights of a column.
  void weights(const uint8_t* strip, int64_t column, int64_t k, float* out) const {
    const Table& table = kTables[grouping.table];
    for (int64_t group = 0; group < groups; ++group) {
      const float scale = number(strip, 0, scale_nests_at, column, group);
      const int32_t zero =
          grouping.zeros ? strip[chunk_of(group) + zeros_at + index_of(group, column)] : 0;
      const float minimum =
          grouping.minima ? number(strip, minima_at, minimum_nests_at, column, group) : 0.0f;
      const int64_t end = std::min(k, (group + 1) * grouping.group);
      for (int64_t i = group * grouping.group; i < end; ++i) {
        const int32_t found = code(strip, column, i);
        const float number = is_float_table(grouping.table)
                                 ? float_number(grouping.table, found)
                                 : static_cast<float>(table.whole(found) - zero);
        out[i] = number * scale;
        if (grouping.minima) out[i] += minimum;
      }
    }
  }
};

}  // namespace quire::gemm

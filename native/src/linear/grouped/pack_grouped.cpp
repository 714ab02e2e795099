#include "linear/grouped/pack_grouped.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "simd/transpose.h"

namespace quire::gemm {
namespace {

constexpr int64_t kDepth = kChunkDepth;  // of K, put into the strip at a time
constexpr int64_t kMostWords = kDepth / 4;

// Codes as the words of a column, see grouped_weights.h.
void pack_words(const uint8_t* codes, int64_t depth, const CodeStep& step, int32_t table,
                uint8_t* words) {
  if (table == QUIRE_TABLE_E4M3) {
    for (int64_t k = 0; k < depth; ++k) words[k - k % 4 + kPairedBytes[k % 4]] = codes[k];
    return;
  }
  if (step.bits == 8) {
    std::memcpy(words, codes, depth);
    return;
  }
  const int upper = step.bits - 4;
  for (int64_t k = 0; k < depth; k += step.depth, codes += step.depth) {
    for (int64_t i = 0; i < step.low_lines; ++i, words += 4) {
      for (int64_t j = 0; j < 4; ++j) {
        const int high = codes[8 * i + 4 + j] & 15;
        words[j] = static_cast<uint8_t>((codes[8 * i + j] & 15) | high << 4);
      }
    }
    if (upper == 0) continue;
    for (int64_t j = 0; j < 4; ++j) {
      int bits = 0;
      for (int64_t i = 0; i < step.depth / 4; ++i) bits |= codes[4 * i + j] >> 4 << (upper * i);
      words[j] = static_cast<uint8_t>(bits);
    }
    words += 4;
  }
}

}  // namespace

int64_t part_order_at(Format format, int64_t rows, int64_t k) {
  const Grouping grouping(format);
  const int64_t numbers = grouping.item_bytes() * (grouping.minima ? 2 : 1);
  const int64_t of_group = numbers + (grouping.zeros ? 1 : 0);
  const int64_t of_row = k + ceil_div(k, grouping.group) * of_group + (grouping.e4m3 ? 4 : 0);
  return rows * of_row;
}

bool GroupedHalfStripWriter::write(int64_t row, int64_t count, int64_t column,
                                   bool zero_rest) const {
  const CodeStep& step = layout_.step;
  const BlockKind* kind = block_kind(source_.dtype);
  const int64_t padded = layout_.groups * layout_.grouping.group;
  const int64_t end = zero_rest ? kHalfStrip : column + count;
  for (int64_t c = column + count; c < end; ++c) clear(c);
  bool finite = true;
  alignas(64) uint32_t words[kHalfStrip][kMostWords] = {};
  for (int64_t k = 0; k < padded; k += kDepth) {
    const int64_t depth = std::min(kDepth, padded - k);
    const int64_t width = depth / step.depth * step.lines;
    for (int64_t r = 0; r < count; ++r) {
      uint8_t codes[kDepth] = {};
      finite &= kind == nullptr ? read_groups(row + r, k, depth, column + r, codes)
                                : read_blocks(*kind, row + r, k, column + r, codes);
      pack_words(codes, depth, step, layout_.grouping.table,
                 reinterpret_cast<uint8_t*>(words[column + r]));
    }
    uint8_t* codes = strip_ + k / kChunkDepth * layout_.chunk_bytes + layout_.codes_at;
    auto* lines = reinterpret_cast<uint32_t*>(codes + step.bytes_of(k % kChunkDepth)) + first_;
    if (column == 0 && end == kHalfStrip && width % 4 == 0) {
      transpose_group(words[0], kMostWords, width, lines, kStripColumns);
      continue;
    }
    for (int64_t i = 0; i < width; ++i, lines += kStripColumns) {
      for (int64_t c = column; c < end; ++c) lines[c] = words[c][i];
    }
  }
  return finite;
}

bool GroupedHalfStripWriter::read_groups(int64_t row, int64_t k, int64_t depth, int64_t column,
                                         uint8_t* codes) const {
  const Grouping& grouping = layout_.grouping;
  const int64_t item = grouping.item_bytes();
  const int64_t all = source_.rows * layout_.groups;
  const auto* from = static_cast<const uint8_t*>(source_.data);
  std::memcpy(codes, from + row * source_.k + k, std::clamp<int64_t>(source_.k - k, 0, depth));
  const uint8_t* scales = from + source_.rows * source_.k;
  const uint8_t* zeros = scales + all * item;
  const uint8_t* minima = zeros + (grouping.zeros ? all : 0);
  const uint8_t* divisors = minima + (grouping.minima ? all * item : 0);
  const int64_t group = k / grouping.group;
  const int64_t count = depth / grouping.group;
  const int64_t own = row * layout_.groups + group;
  bool finite = copy_numbers(scales + own * item, 0, group, count, column);
  if (grouping.e4m3) finite &= put_divisor(divisors + 4 * row, group, column);
  if (grouping.table == QUIRE_TABLE_E4M3) finite &= mark_groups(codes, group, count, column);
  if (grouping.zeros) {
    for (int64_t g = 0; g < count; ++g) {
      uint8_t* chunk = strip_ + layout_.chunk_of(group + g);
      chunk[layout_.zeros_at + layout_.index_of(group + g, first_ + column)] = zeros[own + g];
    }
  }
  if (grouping.minima) {
    finite &= copy_numbers(minima + own * item, layout_.minima_at, group, count, column);
  }
  return finite;
}

bool GroupedHalfStripWriter::copy_numbers(const uint8_t* from, int64_t numbers_at, int64_t group,
                                          int64_t count, int64_t column) const {
  const int64_t item = layout_.grouping.item_bytes();
  bool finite = true;
  for (int64_t g = 0; g < count; ++g) {
    uint8_t* numbers = strip_ + layout_.chunk_of(group + g) + numbers_at;
    std::memcpy(numbers + layout_.index_of(group + g, first_ + column) * item, from + g * item,
                item);
    finite &= layout_.grouping.e4m3 ? is_e4m3_number(from[g])
                                    : std::isfinite(layout_.grouping.number(from, g));
  }
  return finite;
}

bool GroupedHalfStripWriter::put_divisor(const uint8_t* from, int64_t group, int64_t column) const {
  float divisor;
  std::memcpy(&divisor, from, sizeof divisor);
  uint8_t* chunk = strip_ + layout_.chunk_of(group);
  std::memcpy(chunk + layout_.scale_nests_at + 4 * (first_ + column), from, sizeof divisor);
  return std::isfinite(1.0f / divisor) && std::isfinite(divisor);
}

// A NaN code of E4M3 makes the scale of its group NaN.
bool GroupedHalfStripWriter::mark_groups(const uint8_t* codes, int64_t group, int64_t count,
                                         int64_t column) const {
  const int64_t size = layout_.grouping.group;
  bool finite = true;
  for (int64_t g = 0; g < count; ++g) {
    const uint8_t* own = codes + g * size;
    if (std::all_of(own, own + size, is_e4m3_number)) continue;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const int64_t index = layout_.index_of(group + g, first_ + column);
    std::memcpy(strip_ + layout_.chunk_of(group + g) + index * sizeof nan, &nan, sizeof nan);
    finite = false;
  }
  return finite;
}

bool GroupedHalfStripWriter::read_blocks(const BlockKind& kind, int64_t row, int64_t k,
                                         int64_t column, uint8_t* codes) const {
  const auto* from = static_cast<const uint8_t*>(source_.data) + row * kind.row_bytes(source_.k);
  const int64_t end = std::min(k + kDepth, source_.k);
  bool finite = true;
  for (int64_t at = k; at < end; at += kind.items) {
    BlockGroups block;
    kind.read(from + kind.row_bytes(at), block);
    std::memcpy(codes + at - k, block.codes, kind.items);
    finite &= put_numbers(at / kind.group(), kind.items / kind.group(), column, block);
  }
  return finite;
}

bool GroupedHalfStripWriter::put_numbers(int64_t group, int64_t count, int64_t column,
                                         const BlockGroups& of_block) const {
  const Grouping& grouping = layout_.grouping;
  uint8_t* chunk = strip_ + layout_.chunk_of(group);
  const int64_t place = layout_.index_of(group, first_ + column);
  const auto put_all = [&](float number, uint16_t half, const int8_t* inner, int64_t at,
                           int64_t nests_at) {
    if (grouping.e4m3) {
      std::memcpy(chunk + nests_at + 4 * (first_ + column), &number, sizeof number);
    } else if (grouping.nested) {
      std::memcpy(chunk + nests_at + 2 * (first_ + column), &half, 2);
    }
    if (grouping.e4m3 || grouping.nested) {
      for (int64_t g = 0; g < count; ++g) {
        chunk[at + place + g * kStripColumns] = static_cast<uint8_t>(inner[g]);
      }
    } else if (grouping.half) {
      std::memcpy(chunk + at + 2 * place, &half, 2);
    } else {
      std::memcpy(chunk + at + 4 * place, &number, 4);
    }
  };
  put_all(of_block.scale, of_block.half_scale, of_block.inner_scales, 0, layout_.scale_nests_at);
  if (!grouping.minima) return std::isfinite(of_block.scale);
  put_all(of_block.minimum, of_block.half_minimum, of_block.inner_minima, layout_.minima_at,
          layout_.minimum_nests_at);
  return std::isfinite(of_block.scale) && std::isfinite(of_block.minimum);
}

// A column without weights. Its codes may be any, as its scales are 0.
void GroupedHalfStripWriter::clear(int64_t column) const {
  const Grouping& grouping = layout_.grouping;
  const int64_t item = grouping.item_bytes();
  const int64_t own = first_ + column;
  for (int64_t g = 0; g < layout_.groups; ++g) {
    uint8_t* chunk = strip_ + layout_.chunk_of(g);
    const int64_t index = layout_.index_of(g, own);
    std::memset(chunk + index * item, 0, item);
    if (grouping.zeros) chunk[layout_.zeros_at + index] = 0;
    if (grouping.minima) std::memset(chunk + layout_.minima_at + index * item, 0, item);
  }
  for (int64_t i = 0; i < layout_.chunks(); ++i) {
    uint8_t* chunk = strip_ + i * layout_.chunk_bytes;
    if (grouping.e4m3) {
      const float one = 1.0f;
      std::memcpy(chunk + layout_.scale_nests_at + own * 4, &one, sizeof one);
    }
    if (!grouping.nested) continue;
    std::memset(chunk + layout_.scale_nests_at + own * 2, 0, 2);
    if (grouping.minima) std::memset(chunk + layout_.minimum_nests_at + own * 2, 0, 2);
  }
}

}  // namespace quire::gemm

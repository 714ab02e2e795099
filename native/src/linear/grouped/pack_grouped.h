// Puts a checkpoint's groups of codes into strips, as they are.
#pragma once

#include "linear/grouped/grouped_weights.h"
#include "linear/packing/gguf_blocks.h"
#include "linear/packing/pack_source.h"

namespace quire::gemm {

// Where the order of the columns begins in a source of groups that has one.
int64_t part_order_at(Format format, int64_t rows, int64_t k);

// Writes columns of one half strip: source rows `row .. row + count - 1` become its columns
// `column ..`; with `zero_rest` the columns after them are cleared. Returns whether all scales and
// minima are finite.
class GroupedHalfStripWriter {
 public:
  // `first`: the column of the strip that is the half's first.
  GroupedHalfStripWriter(const Source& source, Format format, uint8_t* strip, int64_t first)
      : source_(source), layout_(format, source.k), strip_(strip), first_(first) {}

  bool write(int64_t row, int64_t count, int64_t column, bool zero_rest) const;

 private:
  // Each reads the codes of `depth` of K of a row, from a multiple of kMostBlockItems on, and puts
  // what the groups have there into the column. Returns whether that is finite.
  bool read_groups(int64_t row, int64_t k, int64_t depth, int64_t column, uint8_t* codes) const;
  bool read_blocks(const BlockKind& kind, int64_t row, int64_t k, int64_t column,
                   uint8_t* codes) const;
  // `count` groups, those of a block.
  bool put_numbers(int64_t group, int64_t count, int64_t column, const BlockGroups& of_block) const;
  bool copy_numbers(const uint8_t* from, int64_t numbers_at, int64_t group, int64_t count,
                    int64_t column) const;
  bool put_divisor(const uint8_t* from, int64_t group, int64_t column) const;
  bool mark_groups(const uint8_t* codes, int64_t group, int64_t count, int64_t column) const;
  void clear(int64_t column) const;

  const Source& source_;
  GroupedStrip layout_;
  uint8_t* strip_;
  int64_t first_;
};

}  // namespace quire::gemm

// Blocks of GGUF tensors: what their codes, scales and minima are, for the types that are held as
// they are (quire_dtype, QUIRE_GGUF). Source of all layouts: ggml-common.h.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace quire::gemm {

constexpr int64_t kMostBlockItems = 256;
constexpr int64_t kMostBlockGroups = 16;

// What one block says, as the grouped format of its type has it: a weight is
// (number of its code) * scale(g) + minimum(g), each product and each sum rounded to float32.
struct BlockGroups {
  uint8_t codes[kMostBlockItems];
  float scale = 0;    // of the block; of scales in E4M3, what divides them
  float minimum = 0;  // likewise
  // The same two, of types that have them as float16.
  uint16_t half_scale = 0;
  uint16_t half_minimum = 0;
  // Nested formats: what these two are multiplied by for each group. Exact in float32. Of E4M3 the
  // bytes of scales.
  int8_t inner_scales[kMostBlockGroups];
  int8_t inner_minima[kMostBlockGroups];
};

struct BlockKind {
  int32_t type;      // its number in files
  int32_t items;     // numbers of a block
  int32_t bytes;     // of a block
  int32_t grouping;  // the bits of quire_grouping that hold it
  void (*read)(const uint8_t* block, BlockGroups& out);

  int64_t row_bytes(int64_t k) const { return k / items * bytes; }
  int64_t group() const { return int64_t{1} << (grouping >> QUIRE_GROUP_SHIFT & 15); }
  bool is_nested() const { return (grouping & QUIRE_GROUPS_NESTED) != 0; }
};

// Null for a type that is not known here. `dtype`: of a source.
const BlockKind* block_kind(DType dtype);

inline bool is_blocks(DType dtype) { return static_cast<int32_t>(dtype) >= QUIRE_GGUF; }

// The numbers of one block.
void block_values(const BlockKind& kind, const uint8_t* block, float* out);

}  // namespace quire::gemm

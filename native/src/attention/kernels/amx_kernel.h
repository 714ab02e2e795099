// Both products of attention on AMX tiles, for a bfloat16 cache and for an int8 one.
//
// K groups are tiles as they lie in the cache (16 pairs of the head dimension by 16 tokens). A V
// tile spans 32 tokens, two groups that may lie in different blocks, so load_values() copies
// the chunk's V into tiles of 1 KB, once for all rows of the item. Tokens that the request does not
// have yet are copied as zeros: numbers of an earlier request may be there, and not finite.
#pragma once

#if defined(__AMX_BF16__)

#include "attention/kernels/expand.h"

namespace quire {

struct AmxKernel : PlainNumbers<uint16_t> {
  static constexpr int kRows = 32;
  static constexpr int kRowStep = 16;
  static constexpr bool kFetchesInScores = true;
  static constexpr bool kFetchesInValues = true;
  static constexpr int kGroupsAhead = kChunkGroups;
  static void begin();
  static void end();
  // Sets the tile height for an item of so many rows.
  static void begin_item(int rows);
  // Copies V into tiles: [padded_dim / 16][kChunk / 2][16][2].
  static void load_values(ChunkView& chunk, int64_t dim);
  static void scores(const Elem* q, int rows, int64_t dim, const ChunkView& chunk, int g0, int g1,
                     float* out);
  static void values(const Elem* p, int rows, int64_t dim, const ChunkView& chunk, int g0, int g1,
                     float* out);
};

// The same products for an int8 or int4 cache: groups become bfloat16, V at once in tiles.
template <int kBits>
struct ExpandingAmxKernel : AmxKernel {
  static constexpr bool kExpands = true;
  static constexpr bool kFetchesInScores = false;
  static constexpr float kScaleUnit = kExpandedUnit;
  static void load_keys(ChunkView& chunk, int64_t dim, int g0, int g1);
  static void load_values(ChunkView& chunk, int64_t dim);
};

}  // namespace quire

#endif

// Many rows on AMX: all tiles of a block of x with one strip.
//
// K is cut in blocks whose weights (32 KB) stay in the first-level cache while all tiles of x are
// read from the second; the accumulators are kept in `sums` between blocks, which changes no bit.
// Each pass prefetches its share of the next block of weights. x is read with the streaming hint,
// which leaves the weights in the first level (1.3 times the speed), but only after ordinary loads
// have put x into the second level: streaming loads would not.
#pragma once

#include "linear/amx/amx_family.h"
#include "linear/amx/amx_low_rank.h"
#include "linear/amx/amx_steps.h"
#include "linear/int4_weights.h"

namespace quire::gemm {

constexpr int64_t kBlockSteps = 16;
constexpr int64_t kShortBlockSteps =
    8;  // with few passes: spreads the prefetching of the next block
constexpr int64_t kFewPasses = 2;

// Bytes of packed weights that a step of K reads, 32 columns.
template <class Product>
constexpr int64_t kPackedStepBytes = Product::kInt4 ? kSlabBytes : kStepWeightBytes;

// Finishes the rows of a pair of tiles (or of the last one alone).
template <class Product>
void finish_pair(const Block& block, int64_t first) {
  for (int64_t tile = first; tile < std::min(first + 2, block.tiles); ++tile) {
    AmxFamily<Product>::finish(block, 0, tile);
  }
}

// A block of K: its weights, and those of the next block.
struct Slice {
  const uint8_t* weight;
  int64_t first_step;
  int64_t steps;
  int64_t ahead_lines;  // to be prefetched with every step
  bool first;
  bool last;
};

// One or two tiles of rows times one block of K.
template <class Product, int kTiles, bool kStreamX>
void pass(const Block& block, int64_t tile, const Slice& slice, const uint8_t* ahead) {
  float* upper = block.sums_of(0, tile);
  float* lower = block.sums_of(0, tile + kTiles - 1);
  if (slice.first) {
    start_sums<Product::kInt8, kTiles, 1>(block, tile);
  } else {
    load_sums<kTiles>(upper, lower);
  }
  const int64_t x_step = block.rows * 64;
  Cursor at{block.x + tile * block.tile_bytes + slice.first_step * x_step,
            x_step,
            block.tile_bytes,
            slice.weight,
            0,
            ahead};
  auto rows = slice.last ? RowsToFetch::of(block, tile, kTiles, slice.steps) : RowsToFetch{};
  for (int64_t i = 0; i < slice.steps; ++i) {
    step<Product::kInt8, kTiles, 1, kStreamX>(at);
    rows.fetch_some(block);
    for (int64_t line = 0; line < slice.ahead_lines; ++line, at.ahead += 64) {
      prefetch_lines<1, CacheLevel::kSecondLevel>(at.ahead);
    }
    at.x += at.x_step;
    at.weight += kStepWeightBytes;
  }
  store_sums<kTiles>(upper, lower);
}

// All tiles of rows with one strip, K in blocks.
template <class Product, bool kStreamX>
void blocked(const Block& block, int64_t block_steps) {
  const int64_t total = block.k / AmxFamily<Product>::kDepth;
  const int64_t passes = ceil_div(block.tiles, 2);
  const int64_t block_bytes = block_steps * kPackedStepBytes<Product>;
  alignas(64) uint8_t expanded[Product::kInt4 ? kBlockSteps * kExpandedSlabBytes : 64];
  for (int64_t done = 0; done < total; done += block_steps) {
    const uint8_t* packed = block.weight + done * kPackedStepBytes<Product>;
    Slice slice{packed, done, std::min(block_steps, total - done), 0, done == 0, false};
    slice.last = done + slice.steps == total;
    const uint8_t* ahead = slice.last ? block.next : packed + block_bytes;
    const uint8_t* ahead_end = ahead + block_bytes;
    const int64_t lines = ceil_div(block_bytes, passes * slice.steps * 64);
    if constexpr (Product::kInt4) {
      expand_slabs(packed, slice.steps, expanded);
      slice.weight = expanded;
    }
    for (int64_t tile = 0; tile < block.tiles; tile += 2) {
      slice.ahead_lines = ahead < ahead_end ? lines : 0;
      if (tile + 1 < block.tiles) {
        pass<Product, 2, kStreamX>(block, tile, slice, ahead);
      } else {
        pass<Product, 1, kStreamX>(block, tile, slice, ahead);
      }
      ahead += slice.ahead_lines * slice.steps * 64;
      // One pair late: its sums are then in the first-level cache.
      if (slice.last && tile > 0) finish_pair<Product>(block, tile - 2);
    }
  }
  finish_pair<Product>(block, (passes - 1) * 2);
}

template <class Product>
void many_tiles(const Block& block) {
  if (block.tiles <= 2 * kFewPasses) {
    blocked<Product, false>(block, kShortBlockSteps);
  } else if (block.x_is_cached) {
    blocked<Product, true>(block, kBlockSteps);
  } else {
    blocked<Product, false>(block, kBlockSteps);
  }
}

}  // namespace quire::gemm

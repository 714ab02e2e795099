// Few rows on AMX: one or two tiles of x.
//
// The weight is read once and the loop is bound by memory, so it reads the whole of K in several
// streams and prefetches a fixed distance ahead, into the next strip at the end.
#pragma once

#include "linear/amx/amx_family.h"
#include "linear/amx/amx_low_rank.h"
#include "linear/amx/amx_steps.h"
#include "linear/int4_weights.h"

namespace quire::gemm {

constexpr int64_t kAheadSteps = 4;
constexpr int64_t kAheadSlabs = 8;

// `count` steps that prefetch as many bytes of weights as they consume, from `ahead`, and each some
// rows of the destinations.
template <class Product, int kTiles, int kStrips>
QUIRE_INLINE void stream_steps(const Block& block, Cursor& at, int64_t count, RowsToFetch rows) {
  for (int64_t i = 0; i < count; ++i) {
    rows.fetch_some(block);
    prefetch_lines<kStepLines>(at.ahead);
    if constexpr (kStrips == 2) prefetch_lines<kStepLines>(at.ahead + block.strip_bytes);
    step<Product::kInt8, kTiles, kStrips>(at);
    at.x += at.x_step;
    at.weight += kStepWeightBytes;
    at.ahead += kStepWeightBytes;
  }
}

// One or two tiles of rows with one or two strips, over the whole of K.
template <class Product, int kTiles, int kStrips>
void stream(const Block& block) {
  const int64_t steps = block.k / AmxFamily<Product>::kDepth;
  const int64_t ahead = std::min(steps, kAheadSteps);
  const auto rows = RowsToFetch::of(block, 0, kTiles, std::max<int64_t>(1, steps - ahead));
  Cursor at{block.x, block.rows * 64, block.tile_bytes, block.weight, block.strip_bytes, nullptr};
  start_sums<Product::kInt8, kTiles, kStrips>(block, 0);
  at.ahead = at.weight + ahead * kStepWeightBytes;
  stream_steps<Product, kTiles, kStrips>(block, at, steps - ahead, rows);
  at.ahead = block.next;
  stream_steps<Product, kTiles, kStrips>(block, at, ahead, {});
  store_sums<kTiles * kStrips>(block.sums_of(0, 0),
                               kTiles == 2 ? block.sums_of(0, 1) : block.sums_of(1, 0));
}

// The same for weights of 4 bits: vectors expand the next step while the tiles work on this one.
template <int kTiles, int kStrips>
void stream_int4(const Block& block) {
  alignas(64) uint8_t expanded[2][kStrips][kExpandedSlabBytes];
  const int64_t steps = block.k / kSlabDepth;
  const uint8_t* slab = block.weight;
  const auto expand = [&](int64_t i) {
    const uint8_t* ahead = i + kAheadSlabs < steps
                               ? slab + (i + kAheadSlabs) * kSlabBytes
                               : block.next + (i + kAheadSlabs - steps) * kSlabBytes;
#pragma GCC unroll 2
    for (int s = 0; s < kStrips; ++s) {
      prefetch_lines<ceil_div(kSlabBytes, 64)>(ahead + s * block.strip_bytes);
      expand_slab(slab + s * block.strip_bytes + i * kSlabBytes, expanded[i % 2][s]);
    }
  };
  Cursor at{block.x, block.rows * 64, block.tile_bytes, nullptr, kExpandedSlabBytes, nullptr};
  zero_sums<kTiles * kStrips>();
  expand(0);
  for (int64_t i = 0; i < steps; ++i) {
    if (i + 1 < steps) expand(i + 1);
    at.weight = expanded[i % 2][0];
    step<true, kTiles, kStrips>(at);
    at.x += at.x_step;
  }
  store_sums<kTiles * kStrips>(block.sums_of(0, 0),
                               kTiles == 2 ? block.sums_of(0, 1) : block.sums_of(1, 0));
}

template <class Product, int kTiles, int kStrips>
void few_tiles(const Block& block) {
  if constexpr (Product::kInt4) {
    stream_int4<kTiles, kStrips>(block);
  } else {
    stream<Product, kTiles, kStrips>(block);
  }
}

}  // namespace quire::gemm

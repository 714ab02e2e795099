// The AMX inner loops; see amx_family.h.
//
// Few rows: the weight is read once and the loop is bound by memory, so it walks the whole of K
// with several streams and prefetches a fixed distance ahead, into the next strip at the end.
// Many rows: K is cut in blocks whose weights (32 KB) stay in the first-level cache while all tiles
// of x pass by from the second; the accumulators rest in `sums` between blocks, which changes no
// bit. Each pass brings in its share of the next block of weights. x is then read with the
// streaming hint, which leaves the weights in the first level (1.3 times the speed), but only after
// ordinary loads have brought x into the second level: streaming loads would not.
#if defined(__AMX_BF16__)

#include "linear/amx_family.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "linear/amx_steps.h"
#include "linear/fetch.h"
#include "linear/int4_weights.h"
#include "linear/int8_sums.h"
#include "linear/x_chunk.h"

namespace quire::gemm {
namespace {

constexpr int64_t kBlockSteps = 16;
constexpr int64_t kShortBlockSteps = 8;  // with few passes: the next block comes in more evenly
constexpr int64_t kFewPasses = 2;
constexpr int64_t kAheadSteps = 4;
constexpr int64_t kAheadSlabs = 8;

// Bytes that a step of K takes in memory, 32 columns.
template <class Product>
constexpr int64_t kHeldStepBytes = Product::kInt4 ? kSlabBytes : kStepWeightBytes;

// Rows of x from `next` to `end` whose destinations are brought near, `each` at a time.
struct RowsToFetch {
  int64_t next;
  int64_t end;
  int64_t each;

  // Those of `tiles` tiles from `tile` on, shared out over `steps`.
  static QUIRE_INLINE RowsToFetch of(const Block& block, int64_t tile, int64_t tiles,
                                     int64_t steps) {
    const int64_t rows = block.rows / block.planes;
    const int64_t end = std::min(block.rows_of_x(), (tile + tiles) * rows);
    return {tile * rows, end, ceil_div(tiles * rows, steps)};
  }

  QUIRE_INLINE void fetch_some(const Block& block) {
    const int64_t to = std::min(next + each, end);
    fetch_destinations(block, next, to);
    next = to;
  }
};

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
  zero_sums<kTiles * kStrips>();
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
      prefetch_lines<kSlabBytes / 64>(ahead + s * block.strip_bytes);
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

// The scales of a tile's rows of x.
template <class Product>
const float* scales_of_x(const Block& block, int64_t tile) {
  return reinterpret_cast<const float*>(
      block.x + tile * block.tile_bytes +
      AmxFamily<Product>::matrix_bytes(block.rows / Product::kPlanes, block.k));
}

// Finishes the rows of a pair of tiles (or of the last one alone).
template <class Product>
void finish_pair(const Block& block, int64_t first) {
  const int64_t tile_rows = block.rows / Product::kPlanes;
  for (int64_t tile = first; tile < std::min(first + 2, block.tiles); ++tile) {
    const int64_t rows = block.rows_of(tile) / Product::kPlanes;
    float* sums = block.sums_of(0, tile);
    if constexpr (Product::kInt8) {
      scale_rows<Product::kPlanes, false>(block, 0, scales_of_x<Product>(block, tile), rows, sums,
                                          sums);
    }
    block.finish(0, tile * tile_rows, rows, sums);
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
    zero_sums<kTiles>();
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
      prefetch_lines<1, Near::kSecondLevel>(at.ahead);
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
  const int64_t block_bytes = block_steps * kHeldStepBytes<Product>;
  alignas(64) uint8_t expanded[Product::kInt4 ? kBlockSteps * kExpandedSlabBytes : 64];
  for (int64_t done = 0; done < total; done += block_steps) {
    const uint8_t* held = block.weight + done * kHeldStepBytes<Product>;
    Slice slice{held, done, std::min(block_steps, total - done), 0, done == 0, false};
    slice.last = done + slice.steps == total;
    const uint8_t* ahead = slice.last ? block.next : held + block_bytes;
    const uint8_t* ahead_end = ahead + block_bytes;
    const int64_t lines = ceil_div(block_bytes, passes * slice.steps * 64);
    if constexpr (Product::kInt4) {
      expand_slabs(held, slice.steps, expanded);
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
      // One pair late: its sums are in memory by now, and near.
      if (slice.last && tile > 0) finish_pair<Product>(block, tile - 2);
    }
  }
  finish_pair<Product>(block, (passes - 1) * 2);
}

template <class Product>
void many_tiles(const Block& block) {
  if (block.tiles <= 2 * kFewPasses) {
    blocked<Product, false>(block, kShortBlockSteps);
  } else if (block.x_is_near) {
    blocked<Product, true>(block, kBlockSteps);
  } else {
    blocked<Product, false>(block, kBlockSteps);
  }
}

template <class Product, int kTiles, int kStrips>
void few_tiles(const Block& block) {
  if constexpr (Product::kInt4) {
    stream_int4<kTiles, kStrips>(block);
  } else {
    stream<Product, kTiles, kStrips>(block);
  }
}

// 32 elements of one row, converted, zeros after the end of the row.
QUIRE_INLINE void pack_line(const Rows& x, const void* row, int64_t k, uint8_t* out) {
  const bool is_f32 = x.dtype == DType::kF32;
  const auto* from32 = static_cast<const float*>(row) + k;
  const auto* from16 = static_cast<const uint16_t*>(row) + k;
  const int64_t count = std::min<int64_t>(32, x.k - k);
  if (count == 32 && is_f32) {
    store(out, f32_to_bf16(load<F32x16>(from32)));
    store(out + 32, f32_to_bf16(load<F32x16>(from32 + 16)));
  } else if (count == 32) {
    std::memcpy(out, from16, 64);
  } else {
    uint16_t line[32] = {};
    for (int64_t i = 0; i < count; ++i) line[i] = is_f32 ? f32_to_bf16(from32[i]) : from16[i];
    std::memcpy(out, line, 64);
  }
}

}  // namespace

template <class Product>
bool AmxFamily<Product>::available() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, absent from older headers
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

template <class Product>
void AmxFamily<Product>::pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                                   int64_t k_padded, uint8_t* out) {
  RowScale scales[kMaxTileRows] = {};
  if constexpr (Product::kInt8) {
    auto* kept = reinterpret_cast<float*>(out + matrix_bytes(tile_rows, k_padded));
    for (int64_t r = 0; r < rows; ++r) {
      scales[r] = row_scale(x, row0 + r, limit_of(kPlanes));
      kept[r] = scales[r].scale;
    }
  }
  for (int64_t k = 0; k < k_padded; k += kDepth) {
    for (int64_t r = 0; r < tile_rows; ++r, out += 64 * kPlanes) {
      if (r >= rows) {
        std::memset(out, 0, 64 * kPlanes);
      } else if constexpr (Product::kInt8) {
        int8_t planes[kPlanes][kChunk];
        quantise_chunk<kPlanes>(x, row0 + r, k, std::min(kChunk, x.k - k), scales[r].inverse,
                                planes);
        std::memcpy(out, planes, sizeof planes);
      } else {
        pack_line(x, x.row(row0 + r), k, out);
      }
    }
  }
}

template <class Product>
void AmxFamily<Product>::begin(int64_t tile_rows) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 6 ? tile_rows * kPlanes : 16);
  }
  // Not the intrinsic: gcc 12 tells the optimiser that it reads eight bytes only.
  asm volatile("ldtilecfg %0" : : "m"(config));
}

template <class Product>
void AmxFamily<Product>::end() {
  _tile_release();
}

template <class Product>
void AmxFamily<Product>::multiply(const Block& block) {
  if (block.tiles > 2) return many_tiles<Product>(block);
  if (block.tiles == 2) {
    few_tiles<Product, 2, 1>(block);
  } else if (block.strips == 2) {
    few_tiles<Product, 1, 2>(block);
  } else {
    few_tiles<Product, 1, 1>(block);
  }
  if constexpr (Product::kInt8) {
    scale_sums<kPlanes, false>(block,
                               [&](int64_t tile) { return scales_of_x<Product>(block, tile); });
  }
  block.finish();
}

template struct AmxFamily<AmxBf16>;
template struct AmxFamily<AmxInt8<1>>;
template struct AmxFamily<AmxInt8<2>>;
template struct AmxFamily<AmxInt4<1>>;
template struct AmxFamily<AmxInt4<2>>;

}  // namespace quire::gemm

#endif

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

namespace quire::gemm {
namespace {

constexpr int64_t kStepWeightBytes = 2048;  // one step of K, 32 columns
constexpr int64_t kStepLines = kStepWeightBytes / 64;
constexpr int64_t kBlockSteps = 16;
constexpr int64_t kShortBlockSteps = 8;  // with few passes the next block is fetched to level one
constexpr int64_t kFewPasses = 2;
constexpr int64_t kAheadSteps = 4;
constexpr int64_t kWeightStride = 128;  // between the pairs of K of a strip
constexpr int64_t kSumsStride = kStripColumns * 4;

// Tile registers: accumulators 0-3, x 4-5, weights 6-7.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Where the next step reads.
struct Cursor {
  const uint8_t* x;
  int64_t x_step;  // bytes of one tile's step
  int64_t x_tile;  // to the next tile of rows
  const uint8_t* weight;
  int64_t strip;         // to the next strip
  const uint8_t* ahead;  // what to prefetch meanwhile
};

enum class Near { kFirstLevel, kSecondLevel };

template <int kLines, Near near = Near::kFirstLevel>
QUIRE_INLINE void prefetch_lines(const uint8_t* p) {
  constexpr auto kHint = near == Near::kFirstLevel ? _MM_HINT_T0 : _MM_HINT_T1;
#pragma GCC unroll 32
  for (int i = 0; i < kLines; ++i) _mm_prefetch(reinterpret_cast<const char*>(p + i * 64), kHint);
}

template <bool kStreamX>
QUIRE_INLINE void step_two_tiles(const Cursor& at) {
  if constexpr (kStreamX) {
    _tile_stream_loadd(4, at.x, 64);
  } else {
    _tile_loadd(4, at.x, 64);
  }
  _tile_loadd(6, at.weight, kWeightStride);
  _tile_loadd(7, at.weight + 64, kWeightStride);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kStreamX) {
    _tile_stream_loadd(5, at.x + at.x_tile, 64);
  } else {
    _tile_loadd(5, at.x + at.x_tile, 64);
  }
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

QUIRE_INLINE void step_one_tile(const Cursor& at) {
  _tile_loadd(4, at.x, 64);
  _tile_loadd(6, at.weight, kWeightStride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, at.weight + 64, kWeightStride);
  _tile_dpbf16ps(1, 4, 7);
}

QUIRE_INLINE void step_two_strips(const Cursor& at) {
  step_one_tile(at);
  _tile_loadd(6, at.weight + at.strip, kWeightStride);
  _tile_dpbf16ps(2, 4, 6);
  _tile_loadd(7, at.weight + at.strip + 64, kWeightStride);
  _tile_dpbf16ps(3, 4, 7);
}

// Tiles of rows and strips that one pass of the inner loop holds: 1x1, 2x1 or 1x2.
template <int kTiles, int kStrips, bool kStreamX = false>
QUIRE_INLINE void step(const Cursor& at) {
  static_assert(kTiles * kStrips <= 2);
  if constexpr (kTiles == 2) {
    step_two_tiles<kStreamX>(at);
  } else if constexpr (kStrips == 2) {
    step_two_strips(at);
  } else {
    step_one_tile(at);
  }
}

template <int kAccumulatorPairs>
QUIRE_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kAccumulatorPairs == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <int kAccumulatorPairs>
QUIRE_INLINE void load_sums(const float* first, const float* second) {
  _tile_loadd(0, first, kSumsStride);
  _tile_loadd(1, first + kHalfStrip, kSumsStride);
  if constexpr (kAccumulatorPairs == 2) {
    _tile_loadd(2, second, kSumsStride);
    _tile_loadd(3, second + kHalfStrip, kSumsStride);
  }
}

template <int kAccumulatorPairs>
QUIRE_INLINE void store_sums(float* first, float* second) {
  _tile_stored(0, first, kSumsStride);
  _tile_stored(1, first + kHalfStrip, kSumsStride);
  if constexpr (kAccumulatorPairs == 2) {
    _tile_stored(2, second, kSumsStride);
    _tile_stored(3, second + kHalfStrip, kSumsStride);
  }
}

// `count` steps that prefetch as many bytes of weights as they consume, from `ahead`.
template <int kTiles, int kStrips>
QUIRE_INLINE void stream_steps(Cursor& at, int64_t count, int64_t ahead_strip) {
  for (int64_t i = 0; i < count; ++i) {
    prefetch_lines<kStepLines>(at.ahead);
    if constexpr (kStrips == 2) prefetch_lines<kStepLines>(at.ahead + ahead_strip);
    step<kTiles, kStrips>(at);
    at.x += at.x_step;
    at.weight += kStepWeightBytes;
    at.ahead += kStepWeightBytes;
  }
}

// One or two tiles of rows with one or two strips, over the whole of K.
template <int kTiles, int kStrips>
void stream(const Block& block, int64_t strip) {
  const int64_t steps = block.k / AmxFamily::kDepth;
  const int64_t ahead = std::min(steps, kAheadSteps);
  Cursor at{block.x,           block.rows * 64,
            block.tile_bytes,  block.weight + strip * block.strip_bytes,
            block.strip_bytes, nullptr};
  zero_sums<kTiles * kStrips>();
  at.ahead = at.weight + ahead * kStepWeightBytes;
  stream_steps<kTiles, kStrips>(at, steps - ahead, block.strip_bytes);
  at.ahead = block.next;
  stream_steps<kTiles, kStrips>(at, ahead, block.strip_bytes);
  store_sums<kTiles * kStrips>(block.sums_of(strip, 0),
                               kTiles == 2 ? block.sums_of(strip, 1) : block.sums_of(strip + 1, 0));
}

// Brings rows [from, to) of a destination near, to be written or only read.
template <bool kToWrite>
QUIRE_INLINE void fetch_rows(const Destination& where, int64_t from, int64_t to) {
  for (int64_t row = from; row < to; ++row) {
    const uint8_t* line = where.first + row * where.row_bytes;
    for (int64_t at = 0; at < where.bytes; at += 64) {
      if constexpr (kToWrite) {
        asm volatile("prefetchw %0" : : "m"(line[at]));
      } else {
        prefetch_lines<1>(line + at);
      }
    }
  }
}

QUIRE_INLINE void fetch_destinations(const Block& block, int64_t from, int64_t to) {
  to = std::min(to, (block.tiles - 1) * block.rows + block.last_rows);
  fetch_rows<true>(block.out, from, to);
  fetch_rows<false>(block.residual, from, to);
}

// One or two tiles of rows times one block of K; every step prefetches `lines` cache lines.
template <int kTiles, Near near, bool kStreamX>
void pass(const Block& block, int64_t tile, Cursor at, int64_t steps, int64_t lines, bool first) {
  float* upper = block.sums_of(0, tile);
  float* lower = block.sums_of(0, tile + kTiles - 1);
  if (first) {
    zero_sums<kTiles>();
  } else {
    load_sums<kTiles>(upper, lower);
  }
  const int64_t rows = first ? ceil_div(kTiles * block.rows, steps) : 0;
  const int64_t row0 = tile * block.rows;
  for (int64_t i = 0; i < steps; ++i) {
    fetch_destinations(block, row0 + i * rows, row0 + (i + 1) * rows);
    for (int64_t line = 0; line < lines; ++line, at.ahead += 64) prefetch_lines<1, near>(at.ahead);
    step<kTiles, 1, kStreamX>(at);
    at.x += at.x_step;
    at.weight += kStepWeightBytes;
  }
  store_sums<kTiles>(upper, lower);
}

// All tiles of rows with one strip, K in blocks.
template <Near near, bool kStreamX>
void blocked(const Block& block, int64_t block_steps) {
  const int64_t total = block.k / AmxFamily::kDepth;
  const int64_t passes = ceil_div(block.tiles, 2);
  const int64_t x_step = block.rows * 64;
  for (int64_t done = 0; done < total; done += block_steps) {
    const int64_t steps = std::min(block_steps, total - done);
    const uint8_t* weight = block.weight + done * kStepWeightBytes;
    const uint8_t* ahead = done + steps < total ? weight + steps * kStepWeightBytes : block.next;
    const int64_t lines = ceil_div(block_steps * kStepLines, passes * steps);
    const uint8_t* ahead_end = ahead + block_steps * kStepWeightBytes;
    for (int64_t tile = 0; tile < block.tiles; tile += 2) {
      const Cursor at{block.x + tile * block.tile_bytes + done * x_step,
                      x_step,
                      block.tile_bytes,
                      weight,
                      0,
                      ahead};
      const int64_t now = ahead < ahead_end ? lines : 0;
      if (tile + 1 < block.tiles) {
        pass<2, near, kStreamX>(block, tile, at, steps, now, done == 0);
      } else {
        pass<1, near, kStreamX>(block, tile, at, steps, now, done == 0);
      }
      ahead += now * steps * 64;
    }
  }
}

void many_tiles(const Block& block) {
  if (block.tiles <= 2 * kFewPasses) {
    blocked<Near::kSecondLevel, false>(block, kShortBlockSteps);
  } else if (block.x_is_near) {
    blocked<Near::kSecondLevel, true>(block, kBlockSteps);
  } else {
    blocked<Near::kSecondLevel, false>(block, kBlockSteps);
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

void AmxFamily::pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                          int64_t k_padded, uint8_t* out) {
  for (int64_t k = 0; k < k_padded; k += kDepth) {
    for (int64_t r = 0; r < tile_rows; ++r, out += 64) {
      if (r < rows) {
        pack_line(x, x.row(row0 + r), k, out);
      } else {
        std::memset(out, 0, 64);
      }
    }
  }
}

bool AmxFamily::available() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, absent from older headers
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

void AmxFamily::begin(int64_t tile_rows) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(i < 6 ? tile_rows : 16);
  }
  // Not the intrinsic: gcc 12 tells the optimiser that it reads eight bytes only.
  asm volatile("ldtilecfg %0" : : "m"(config));
}

void AmxFamily::end() { _tile_release(); }

void AmxFamily::multiply(const Block& block) {
  if (block.tiles > 2) return many_tiles(block);
  if (block.tiles == 2) return stream<2, 1>(block, 0);
  if (block.strips == 2) return stream<1, 2>(block, 0);
  stream<1, 1>(block, 0);
}

}  // namespace quire::gemm

#endif

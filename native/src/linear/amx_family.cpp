// The AMX inner loops; see amx_family.h.
//
// Few rows: the weight is read once and the loop is bound by memory, so it walks the whole of K
// with several streams and prefetches a fixed distance ahead, into the next strip at the end.
// Many rows: K is cut in blocks whose weights (16 KB) stay in the first-level cache while all tiles
// of x pass by from the second; the accumulators rest in `sums` between blocks, which changes no
// bit. Each pass brings in its share of the next block of weights.
#if defined(__AMX_BF16__)

#include "linear/amx_family.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace quire::gemm {
namespace {

constexpr int64_t kStepWeightBytes = 2048;  // one step of K, 32 columns
constexpr int64_t kStepLines = kStepWeightBytes / 64;
constexpr int64_t kBlockSteps = 8;
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

template <int kLines>
QUIRE_INLINE void prefetch_lines(const uint8_t* p) {
#pragma GCC unroll 32
  for (int i = 0; i < kLines; ++i)
    _mm_prefetch(reinterpret_cast<const char*>(p + i * 64), _MM_HINT_T0);
}

QUIRE_INLINE void step_two_tiles(const Cursor& at) {
  _tile_loadd(4, at.x, 64);
  _tile_loadd(6, at.weight, kWeightStride);
  _tile_loadd(7, at.weight + 64, kWeightStride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(5, at.x + at.x_tile, 64);
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
template <int kTiles, int kStrips>
QUIRE_INLINE void step(const Cursor& at) {
  static_assert(kTiles * kStrips <= 2);
  if constexpr (kTiles == 2) {
    step_two_tiles(at);
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

// `count` steps of one or two tiles of rows; every step prefetches `lines` cache lines.
template <int kTiles>
QUIRE_INLINE void blocked_steps(Cursor at, int64_t count, int64_t lines) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t line = 0; line < lines; ++line, at.ahead += 64) prefetch_lines<1>(at.ahead);
    step<kTiles, 1>(at);
    at.x += at.x_step;
    at.weight += kStepWeightBytes;
  }
}

template <int kTiles>
QUIRE_INLINE void block_pass(const Block& block, int64_t tile, const Cursor& at, int64_t steps,
                             int64_t lines, bool is_first) {
  float* first = block.sums_of(0, tile);
  float* second = block.sums_of(0, tile + kTiles - 1);
  if (is_first) {
    zero_sums<kTiles>();
  } else {
    load_sums<kTiles>(first, second);
  }
  blocked_steps<kTiles>(at, steps, lines);
  store_sums<kTiles>(first, second);
}

// All tiles of rows with one strip, K in blocks.
void blocked(const Block& block) {
  const int64_t total = block.k / AmxFamily::kDepth;
  const int64_t passes = ceil_div(block.tiles, 2);
  const int64_t x_step = block.rows * 64;
  for (int64_t done = 0; done < total; done += kBlockSteps) {
    const int64_t steps = std::min(kBlockSteps, total - done);
    const uint8_t* weight = block.weight + done * kStepWeightBytes;
    const uint8_t* ahead = done + steps < total ? weight + steps * kStepWeightBytes : block.next;
    const int64_t lines = ceil_div(kBlockSteps * kStepLines, passes * steps);
    int64_t left = kBlockSteps * kStepLines;
    for (int64_t tile = 0; tile < block.tiles; tile += 2) {
      const Cursor at{block.x + tile * block.tile_bytes + done * x_step,
                      x_step,
                      block.tile_bytes,
                      weight,
                      0,
                      ahead};
      const int64_t now = left > 0 ? lines : 0;
      if (tile + 1 < block.tiles) {
        block_pass<2>(block, tile, at, steps, now, done == 0);
      } else {
        block_pass<1>(block, tile, at, steps, now, done == 0);
      }
      ahead += now * steps * 64;
      left -= now * steps;
    }
  }
}

void pack_row(const Rows& x, int64_t row, int64_t k_padded, int64_t tile_rows, uint8_t* out) {
  const int64_t step_bytes = tile_rows * 64;
  const void* source = x.row(row);
  for (int64_t k = 0; k < k_padded; k += 32, out += step_bytes) {
    const int64_t count = std::min<int64_t>(32, x.k - k);
    uint16_t line[32] = {};
    if (x.dtype == DType::kBF16) {
      const auto* from = static_cast<const uint16_t*>(source) + k;
      if (count == 32) {
        std::memcpy(out, from, 64);
        continue;
      }
      std::copy_n(from, count, line);
    } else {
      const auto* from = static_cast<const float*>(source) + k;
      if (count == 32) {
        store(out, f32_to_bf16(load<F32x16>(from)));
        store(out + 32, f32_to_bf16(load<F32x16>(from + 16)));
        continue;
      }
      for (int64_t i = 0; i < count; ++i) line[i] = f32_to_bf16(from[i]);
    }
    std::memcpy(out, line, 64);
  }
}

}  // namespace

void AmxFamily::pack_tile(const Rows& x, int64_t row0, int64_t rows, int64_t tile_rows,
                          int64_t k_padded, uint8_t* out) {
  for (int64_t r = 0; r < rows; ++r) pack_row(x, row0 + r, k_padded, tile_rows, out + r * 64);
  for (int64_t r = rows; r < tile_rows; ++r) {
    for (int64_t k = 0; k < k_padded; k += 32) std::memset(out + r * 64 + k * tile_rows * 2, 0, 64);
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
  if (block.tiles > 2) return blocked(block);
  if (block.tiles == 2) return stream<2, 1>(block, 0);
  if (block.strips == 2) return stream<1, 2>(block, 0);
  stream<1, 1>(block, 0);
}

}  // namespace quire::gemm

#endif

#if defined(__AMX_BF16__)

#include "attention/amx_kernel.h"

namespace quire {
namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int kTileRows = 16;
constexpr int kStepTokens = 32;
constexpr int64_t kColumnBytes = int64_t{kChunk} / 2 * 64;  // one column block of the V scratch

// Tile registers: accumulators 0-3, rows 4-5, K or V 6-7.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

thread_local int configured_rows = 0;

void configure(int rows) {
  if (rows == configured_rows) return;
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : kTileRows);
  }
  // The intrinsic of some compilers names only the first bytes as its operand, and the stores to
  // the others are then dropped.
  asm volatile("ldtilecfg %0" : : "m"(config));
  configured_rows = rows;
}

// Scores of one or two tiles of rows with two groups (the second may be missing).
template <bool kTwoTiles, bool kTwoGroups>
QUIRE_INLINE void score_tiles(const uint16_t* q, int64_t dim, const uint8_t* keys0,
                              const uint8_t* keys1, float* out) {
  _tile_zero(0);
  if constexpr (kTwoGroups) _tile_zero(1);
  if constexpr (kTwoTiles) _tile_zero(2);
  if constexpr (kTwoTiles && kTwoGroups) _tile_zero(3);
  for (int64_t d = 0; d < dim; d += 32) {
    _tile_loadd(4, q + d, dim * 2);
    _tile_loadd(6, keys0 + d / 32 * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoGroups) {
      _tile_loadd(7, keys1 + d / 32 * kTileBytes, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoTiles) {
      _tile_loadd(5, q + kTileRows * dim + d, dim * 2);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoGroups) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, kScoreStride * 4);
  if constexpr (kTwoGroups) _tile_stored(1, out + kGroup, kScoreStride * 4);
  if constexpr (kTwoTiles) _tile_stored(2, out + kTileRows * kScoreStride, kScoreStride * 4);
  if constexpr (kTwoTiles && kTwoGroups) {
    _tile_stored(3, out + kTileRows * kScoreStride + kGroup, kScoreStride * 4);
  }
}

template <bool kTwoTiles>
void score_all(const uint16_t* q, int64_t dim, const ChunkView& chunk, int g0, int g1, float* out) {
  int g = g0;
  for (; g + 1 < g1; g += 2) {
    if (chunk.fetch && (g - g0) % kFetchGroups == 0) {
      fetch_groups(chunk.values, g, std::min(g + kFetchGroups, g1), chunk.group_bytes);
    }
    score_tiles<kTwoTiles, true>(q, dim, chunk.keys[g], chunk.keys[g + 1], out + g * kGroup);
  }
  if (g < g1) score_tiles<kTwoTiles, false>(q, dim, chunk.keys[g], nullptr, out + g * kGroup);
}

// P * V for two blocks of 16 columns, over steps [s0, s1) of 32 tokens.
template <bool kTwoTiles>
QUIRE_INLINE void value_tiles(const uint16_t* p, int64_t dim, const uint8_t* values, int s0, int s1,
                              float* out) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwoTiles) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int s = s0; s < s1; ++s) {
    _tile_loadd(4, p + s * kStepTokens, kWeightStride * 2);
    _tile_loadd(6, values + s * kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, values + kColumnBytes + s * kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoTiles) {
      _tile_loadd(5, p + kTileRows * kWeightStride + s * kStepTokens, kWeightStride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, dim * 4);
  _tile_stored(1, out + kLanes, dim * 4);
  if constexpr (kTwoTiles) {
    _tile_stored(2, out + kTileRows * dim, dim * 4);
    _tile_stored(3, out + kTileRows * dim + kLanes, dim * 4);
  }
}

}  // namespace

// Another user of the tiles may have configured them since.
void AmxKernel::begin() { configured_rows = 0; }

void AmxKernel::end() { _tile_release(); }

void AmxKernel::begin_item(int rows) { configure(std::min(rows, kTileRows)); }

void AmxKernel::load_values(const ChunkView& chunk, int64_t dim) {
  const int first = chunk.first / 2 * 2;
  const int last = (chunk.last + 1) / 2 * 2;
  for (int g = first; g < last; ++g) {
    uint8_t* out = chunk.tile_space + g * (kGroup / 2) * 64;
    const bool have = g >= chunk.first && g < chunk.last;
    if ((g - first) % kFetchGroups == 0) {
      const int begin = std::max(g, chunk.first);
      const int end = std::min(g + kFetchGroups, chunk.last);
      fetch_groups(chunk.next_keys, begin, end, chunk.group_bytes);
    }
    for (int pair = 0; pair < kGroup / 2; ++pair, out += 64) {
      const uint8_t* row = have ? chunk.values[g] + pair * dim * 4 : nullptr;
      for (int64_t c = 0; c < dim / kLanes; ++c) {
        const __m512i v = have ? _mm512_loadu_si512(row + c * 64) : _mm512_setzero_si512();
        _mm512_store_si512(out + c * kColumnBytes, v);
      }
    }
  }
}

void AmxKernel::scores(const Elem* q, int rows, int64_t dim, const ChunkView& chunk, int g0, int g1,
                       float* out) {
  if (rows > kTileRows) {
    score_all<true>(q, dim, chunk, g0, g1, out);
  } else {
    score_all<false>(q, dim, chunk, g0, g1, out);
  }
}

void AmxKernel::values(const Elem* p, int rows, int64_t dim, const ChunkView& chunk, int g0, int g1,
                       float* out) {
  const int s0 = g0 / 2;
  const int s1 = (g1 + 1) / 2;
  for (int64_t c = 0; c < dim; c += 2 * kLanes) {
    const uint8_t* v = chunk.tile_space + c / kLanes * kColumnBytes;
    if (rows > kTileRows) {
      value_tiles<true>(p, dim, v, s0, s1, out + c);
    } else {
      value_tiles<false>(p, dim, v, s0, s1, out + c);
    }
  }
}

}  // namespace quire

#endif

#if defined(__AMX_BF16__)

#include "attention/kernels/amx_kernel.h"

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

// Scores of one or two tiles of rows with two groups (the second may be missing). With every tile
// of K goes the fetching of as much V.
template <bool kTwoTiles, bool kTwoGroups>
QUIRE_INLINE void score_tiles(const uint16_t* q, int64_t dim, const ChunkView& chunk, int g,
                              float* out) {
  const uint8_t* keys0 = chunk.keys[g];
  const uint8_t* keys1 = kTwoGroups ? chunk.keys[g + 1] : nullptr;
  _tile_zero(0);
  if constexpr (kTwoGroups) _tile_zero(1);
  if constexpr (kTwoTiles) _tile_zero(2);
  if constexpr (kTwoTiles && kTwoGroups) _tile_zero(3);
  for (int64_t d = 0; d < dim; d += 32) {
    for (int i = 0; chunk.scores_fetch && i < (kTwoGroups ? 2 : 1); ++i) {
      fetch_lines(chunk.prefetch_keys[g + i] + d / 32 * kTileBytes, kTileBytes);
    }
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
    score_tiles<kTwoTiles, true>(q, dim, chunk, g, out + g * kGroup);
  }
  if (g < g1) score_tiles<kTwoTiles, false>(q, dim, chunk, g, out + g * kGroup);
}

// The next K comes in two halves: the first during the copying of V, the other during P * V, in as
// many pieces as there are pairs of column blocks.
QUIRE_INLINE void fetch_first_half(const ChunkView& chunk, int g, int pair) {
  const int64_t bytes = chunk.data_bytes / kGroup;
  if (chunk.prefetch_values[g]) fetch_lines(chunk.prefetch_values[g] + pair * bytes, bytes);
}

QUIRE_INLINE void fetch_second_half(const ChunkView& chunk, int g, int64_t dim, int64_t c) {
  const int64_t bytes = chunk.data_bytes / 2 / (dim / (2 * kLanes));
  const int64_t from = chunk.data_bytes / 2 + c / (2 * kLanes) * bytes;
  for (int i = std::max(g, chunk.first); i < std::min(g + 2, chunk.last); ++i) {
    if (chunk.prefetch_values[i]) fetch_lines(chunk.prefetch_values[i] + from, bytes);
  }
}

// P * V for two blocks of 16 columns from column c, over steps [s0, s1) of 32 tokens.
template <bool kTwoTiles>
QUIRE_INLINE void value_tiles(const uint16_t* p, int64_t dim, const ChunkView& chunk, int64_t c,
                              int s0, int s1, float* out) {
  const uint8_t* values = chunk.tile_space + c / kLanes * kColumnBytes;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwoTiles) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int s = s0; s < s1; ++s) {
    if (chunk.values_fetch) fetch_second_half(chunk, 2 * s, dim, c);
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

void AmxKernel::load_values(ChunkView& chunk, int64_t dim) {
  const int first = chunk.first / 2 * 2;
  const int last = (chunk.last + 1) / 2 * 2;
  for (int g = first; g < last; ++g) {
    uint8_t* out = chunk.tile_space + g * (kGroup / 2) * 64;
    const bool have = g >= chunk.first && g < chunk.last;
    for (int pair = 0; pair < kGroup / 2; ++pair, out += 64) {
      if (have) fetch_first_half(chunk, g, pair);
      const uint8_t* row = have ? chunk.values[g] + pair * dim * 4 : nullptr;
      for (int64_t c = 0; c < dim / kLanes; ++c) {
        const __m512i v = have ? _mm512_loadu_si512(row + c * 64) : _mm512_setzero_si512();
        _mm512_store_si512(out + c * kColumnBytes, v);
      }
    }
  }
}

template <int kBits>
void ExpandingAmxKernel<kBits>::load_keys(ChunkView& chunk, int64_t dim, int g0, int g1) {
  expand_keys<kBits>(chunk, dim, g0, g1);
}

template <int kBits>
void ExpandingAmxKernel<kBits>::load_values(ChunkView& chunk, int64_t dim) {
  for (int g = chunk.first / 2 * 2; g < (chunk.last + 1) / 2 * 2; ++g) {
    uint8_t* out = chunk.tile_space + g * (kGroup / 2) * 64;
    if (g >= chunk.first && g < chunk.last) {
      expand_group<kBits, 2>(chunk.values[g], kGroup / 4, dim / kLanes, out, 64, kColumnBytes,
                             chunk.prefetch_values[g]);
      continue;
    }
    for (int64_t c = 0; c < dim / kLanes; ++c) {
      std::memset(out + c * kColumnBytes, 0, kTileBytes / 2);
    }
  }
}

template struct ExpandingAmxKernel<8>;
template struct ExpandingAmxKernel<4>;

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
    if (rows > kTileRows) {
      value_tiles<true>(p, dim, chunk, c, s0, s1, out + c);
    } else {
      value_tiles<false>(p, dim, chunk, c, s0, s1, out + c);
    }
  }
}

}  // namespace quire

#endif

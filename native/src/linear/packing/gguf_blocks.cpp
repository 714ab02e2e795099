#include "linear/packing/gguf_blocks.h"

#include <cstring>

#include "linear/grouped/grouped_weights.h"

namespace quire::gemm {
namespace {

void read_scale(const uint8_t* bytes, BlockGroups& out) {
  std::memcpy(&out.half_scale, bytes, sizeof out.half_scale);
  out.scale = f16_to_f32(out.half_scale);
}

// `sign`: 0x8000 where the minimum is subtracted.
void read_minimum(const uint8_t* bytes, uint16_t sign, BlockGroups& out) {
  std::memcpy(&out.half_minimum, bytes, sizeof out.half_minimum);
  out.half_minimum ^= sign;
  out.minimum = f16_to_f32(out.half_minimum);
}

// 16 bytes with two codes each: all lower halves, then all upper ones.
void read_nibbles(const uint8_t* packed, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = packed[i] & 15;
  for (int64_t i = 0; i < count; ++i) out[count + i] = packed[i] >> 4;
}

// A fifth bit for each of 32 codes.
void add_fifth_bits(const uint8_t* packed, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, packed, sizeof bits);
  for (int64_t i = 0; i < 32; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] + (bits >> i & 1) * 16);
  }
}

void read_q4_0(const uint8_t* block, BlockGroups& out) {
  read_scale(block, out);
  read_nibbles(block + 2, 16, out.codes);
}

void read_q4_1(const uint8_t* block, BlockGroups& out) {
  read_scale(block, out);
  read_minimum(block + 2, 0, out);
  read_nibbles(block + 4, 16, out.codes);
}

void read_q5_0(const uint8_t* block, BlockGroups& out) {
  read_scale(block, out);
  read_nibbles(block + 6, 16, out.codes);
  add_fifth_bits(block + 2, out.codes);
}

void read_q5_1(const uint8_t* block, BlockGroups& out) {
  read_scale(block, out);
  read_minimum(block + 2, 0, out);
  read_nibbles(block + 8, 16, out.codes);
  add_fifth_bits(block + 4, out.codes);
}

void read_q8_0(const uint8_t* block, BlockGroups& out) {
  read_scale(block, out);
  for (int64_t i = 0; i < 32; ++i) out.codes[i] = block[2 + i] ^ 128;
}

// Half of what the exponent says, as the table has doubled numbers: 2^(e - 128).
void read_mxfp4(const uint8_t* block, BlockGroups& out) {
  const uint32_t e = block[0];
  const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
  std::memcpy(&out.scale, &bits, sizeof bits);
  read_nibbles(block + 1, 16, out.codes);
}

// Four groups of 16, each in 8 bytes. Scales have no sign, and 127 stands for 0; they are halved,
// as the table has doubled numbers.
void read_nvfp4(const uint8_t* block, BlockGroups& out) {
  out.scale = 2.0f;
  for (int64_t g = 0; g < 4; ++g) {
    out.inner_scales[g] = static_cast<int8_t>(block[g] == 127 ? 0 : block[g] & 127);
    read_nibbles(block + 4 + 8 * g, 8, out.codes + 16 * g);
  }
}

// 8 scales and 8 minima of 6 bits in 12 bytes; the minima are subtracted.
void read_scales_and_minima(const uint8_t* block, BlockGroups& out) {
  read_scale(block, out);
  read_minimum(block + 2, 0x8000, out);
  const uint8_t* packed = block + 4;
  for (int64_t g = 0; g < 4; ++g) {
    out.inner_scales[g] = static_cast<int8_t>(packed[g] & 63);
    out.inner_minima[g] = static_cast<int8_t>(packed[4 + g] & 63);
    out.inner_scales[4 + g] = static_cast<int8_t>((packed[8 + g] & 15) | (packed[g] >> 6) << 4);
    out.inner_minima[4 + g] = static_cast<int8_t>(packed[8 + g] >> 4 | (packed[4 + g] >> 6) << 4);
  }
}

void read_q4_k(const uint8_t* block, BlockGroups& out) {
  read_scales_and_minima(block, out);
  for (int64_t i = 0; i < 4; ++i) read_nibbles(block + 16 + 32 * i, 32, out.codes + 64 * i);
}

void read_q5_k(const uint8_t* block, BlockGroups& out) {
  read_scales_and_minima(block, out);
  for (int64_t i = 0; i < 4; ++i) read_nibbles(block + 48 + 32 * i, 32, out.codes + 64 * i);
  for (int64_t g = 0; g < 8; ++g) {
    for (int64_t i = 0; i < 32; ++i) {
      out.codes[32 * g + i] =
          static_cast<uint8_t>(out.codes[32 * g + i] + (block[16 + i] >> g & 1) * 16);
    }
  }
}

void read_q6_k(const uint8_t* block, BlockGroups& out) {
  read_scale(block + 208, out);
  std::memcpy(out.inner_scales, block + 192, 16);
  for (int64_t h = 0; h < 2; ++h) {
    uint8_t* codes = out.codes + 128 * h;
    read_nibbles(block + 64 * h, 64, codes);
    for (int64_t g = 0; g < 4; ++g) {
      for (int64_t i = 0; i < 32; ++i) {
        const int high = block[128 + 32 * h + i] >> (2 * g) & 3;
        codes[32 * g + i] = static_cast<uint8_t>(codes[32 * g + i] + high * 16);
      }
    }
  }
}

void read_iq4_xs(const uint8_t* block, BlockGroups& out) {
  read_scale(block, out);
  uint16_t high;
  std::memcpy(&high, block + 2, sizeof high);
  for (int64_t g = 0; g < 8; ++g) {
    const int low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
    out.inner_scales[g] = static_cast<int8_t>((low | (high >> (2 * g) & 3) << 4) - 32);
    read_nibbles(block + 8 + 16 * g, 16, out.codes + 32 * g);
  }
}

constexpr int32_t grouping(int32_t log2_group, int32_t table, int32_t flags) {
  return log2_group << QUIRE_GROUP_SHIFT | table << QUIRE_TABLE_SHIFT | flags;
}

constexpr int32_t kHalf = QUIRE_GROUPS_HALF;
constexpr int32_t kMinima = QUIRE_GROUPS_MINIMA;
constexpr int32_t kNested = QUIRE_GROUPS_NESTED;

const BlockKind kKinds[] = {
    {2, 32, 18, grouping(5, QUIRE_TABLE_S4, kHalf), read_q4_0},
    {3, 32, 20, grouping(5, QUIRE_TABLE_U4, kHalf | kMinima), read_q4_1},
    {6, 32, 22, grouping(5, QUIRE_TABLE_S5, kHalf), read_q5_0},
    {7, 32, 24, grouping(5, QUIRE_TABLE_U5, kHalf | kMinima), read_q5_1},
    {8, 32, 34, grouping(5, QUIRE_TABLE_S8, kHalf), read_q8_0},
    {12, 256, 144, grouping(5, QUIRE_TABLE_U4, kNested | kMinima), read_q4_k},
    {13, 256, 176, grouping(5, QUIRE_TABLE_U5, kNested | kMinima), read_q5_k},
    {14, 256, 210, grouping(4, QUIRE_TABLE_S6, kNested), read_q6_k},
    {20, 32, 18, grouping(5, QUIRE_TABLE_IQ4, kHalf), read_q4_0},
    {23, 256, 136, grouping(5, QUIRE_TABLE_IQ4, kNested), read_iq4_xs},
    {39, 32, 17, grouping(5, QUIRE_TABLE_E2M1, 0), read_mxfp4},
    {40, 64, 36, grouping(4, QUIRE_TABLE_E2M1, QUIRE_GROUPS_E4M3), read_nvfp4},
};

}  // namespace

const BlockKind* block_kind(DType dtype) {
  const int32_t type = static_cast<int32_t>(dtype) - QUIRE_GGUF;
  for (const BlockKind& kind : kKinds) {
    if (kind.type == type) return &kind;
  }
  return nullptr;
}

void block_values(const BlockKind& kind, const uint8_t* block, float* out) {
  BlockGroups groups;
  kind.read(block, groups);
  const Grouping grouping(static_cast<Format>(kind.grouping));
  const Table& table = kTables[grouping.table];
  for (int64_t first = 0; first < kind.items; first += grouping.group) {
    float scale = groups.scale;
    float minimum = groups.minimum;
    if (grouping.e4m3) {
      scale = e4m3_number(groups.inner_scales[first / grouping.group]) / scale;
    } else if (grouping.nested) {
      scale *= static_cast<float>(groups.inner_scales[first / grouping.group]);
      if (grouping.minima) {
        minimum *= static_cast<float>(groups.inner_minima[first / grouping.group]);
      }
    }
    for (int64_t i = first; i < first + grouping.group; ++i) {
      out[i] = static_cast<float>(table.whole(groups.codes[i])) * scale;
      if (grouping.minima) out[i] += minimum;
    }
  }
}

}  // namespace quire::gemm

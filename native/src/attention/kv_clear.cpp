#include "attention/kv_clear.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

// The places of a group from `first` on. Keys: a token has one word in each column of 16.
void clear_keys(const KvSide& side, uint8_t* group, int first) {
  for (int64_t at = 0; at < side.data_bytes; at += kGroup * 4) {
    std::memset(group + at + first * 4, 0, (kGroup - first) * 4);
  }
}

// Values: a row of words has as many tokens as numbers have room in a word.
void clear_values(const KvSide& side, uint8_t* group, int first) {
  const int tokens_per_row = kv_word_numbers(side.dtype);
  const uint64_t number = (uint64_t{1} << 32 / tokens_per_row) - 1;
  uint32_t* row = reinterpret_cast<uint32_t*>(group) + first / tokens_per_row * side.padded_dim;
  uint32_t kept = 0;  // of each word of the first row
  for (int token = 0; token < first % tokens_per_row; ++token) {
    kept |= static_cast<uint32_t>(number << kv_shift(tokens_per_row, token));
  }
  for (int64_t i = 0; i < side.padded_dim; ++i) row[i] &= kept;
  auto* rest = reinterpret_cast<uint8_t*>(row + side.padded_dim);
  std::memset(rest, 0, group + side.data_bytes - rest);
}

// Latent: a row for each token.
void clear_rows(const KvSide& side, uint8_t* group, int first) {
  const int64_t row_bytes = side.data_bytes / kGroup;
  std::memset(group + first * row_bytes, 0, (kGroup - first) * row_bytes);
}

void clear_scales(const KvSide& side, uint8_t* group, int first) {
  for (int32_t i = 0; i < side.num_scales; ++i) {
    std::memset(group + side.data_bytes + (i * kGroup + first) * 4, 0, (kGroup - first) * 4);
  }
}

}  // namespace

void clear_behind(const KvCache& cache, int32_t layer_group, int32_t num_layers, int32_t num_tokens,
                  uint8_t* block) {
  const KvLayout& layout = cache.layouts[layer_group];
  if (cache.state_blocks[layer_group] > 0) return;  // a state fills its blocks
  const int64_t num_heads = int64_t{num_layers} * layout.num_kv_heads;
  for (int64_t head = 0; head < num_heads; ++head) {
    uint8_t* keys = block + head * layout.head_bytes;
    uint8_t* values = keys + layout.keys.bytes;
    for (int begin = num_tokens / kGroup * kGroup; begin < layout.block_size; begin += kGroup) {
      const int first = std::max(num_tokens - begin, 0);
      uint8_t* key_group = keys + begin / kGroup * layout.keys.group_bytes;
      uint8_t* value_group = values + begin / kGroup * layout.values.group_bytes;
      clear_scales(layout.keys, key_group, first);
      if (layout.is_latent()) {
        clear_rows(layout.keys, key_group, first);
        continue;
      }
      clear_keys(layout.keys, key_group, first);
      clear_values(layout.values, value_group, first);
      clear_scales(layout.values, value_group, first);
    }
  }
  std::memset(block + num_heads * layout.head_bytes, 0,
              cache.block_bytes - num_heads * layout.head_bytes);
}

}  // namespace quire

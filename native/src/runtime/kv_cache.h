// The paged KV cache: where the keys and values of a token lie.
//
// A block holds `block_size` tokens of all heads of the layers of one layer group in one piece, so
// that copying a block out or in is one memcpy, and memory is committed block by block as blocks
// are used. Layers of a group have slots of their own; which group a block serves, block tables
// say. Groups may differ in the number and the width of heads: a block has room for the widest. In
// a block: [slot][kv head][K | V], and within a head, for every 16 tokens (a "group")
//   K  [padded_dim / w][16][w]     w numbers of a token side by side, tokens next: one vector load
//   V  [16 / w][padded_dim][w]     gives 16 tokens (K) or 16 numbers of w tokens (V)
// with w = 2 for bfloat16 (the operand order of vdpbf16ps and of AMX tiles), 1 for float32, 4
// for int8 and 8 for int4: the lower halves of four bytes, then their upper halves. Behind the
// numbers of an int8 or int4 group lie 16 floats: what a token's numbers are multiplied by.
//
// An int4 cache has codes of 4 bits for V, 16 c + 8 as an int8 number, and of 5 bits for K, 8 c +
// 4, which costs far less quality than 4; their last bits follow as [padded_dim / 32][16] words.
// Byte b of such a word has those of numbers b, b + 4, b + 8 ... in bits 3, 2, 1, 0, 7, 6, 5, 4.
// The codes are those of heads that were rotated (hadamard.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "quire.h"
#include "runtime/memory.h"

namespace quire {

constexpr int kGroup = QUIRE_KV_GROUP;  // tokens
constexpr int kHeadAlign = 32;  // head_dim is padded with zeros to this: the depth of an AMX tile
constexpr int kMaxLayerGroups = QUIRE_MAX_LAYER_GROUPS;

// Numbers in a word of 32 bits of the cache.
constexpr int kv_word_numbers(int32_t dtype) {
  return dtype == QUIRE_F32 ? 1 : dtype == QUIRE_BF16 ? 2 : dtype == QUIRE_INT8 ? 4 : 8;
}

// Whether a token's numbers are integers that share a scale.
constexpr bool has_kv_scales(int32_t dtype) { return kv_word_numbers(dtype) >= 4; }

// The lowest bit of a number in its word.
constexpr int kv_shift(int word_numbers, int number) {
  return word_numbers < 8 ? 32 / word_numbers * number : 8 * (number % 4) + 4 * (number / 4);
}

// K or V of one head in a block.
struct KvSide {
  // `num_parts`: parts of a row that have a scale each in a cache of bytes.
  KvSide(int32_t head_dim, const quire_kv_spec& spec, bool is_keys, int32_t num_parts = 1)
      : dim(head_dim),
        padded_dim(static_cast<int32_t>(round_up(dim, kHeadAlign))),
        dtype(spec.dtype),
        word_bytes(int64_t{kGroup} * padded_dim * 4 / kv_word_numbers(dtype)),
        data_bytes(dtype == QUIRE_INT4 && is_keys ? word_bytes / 4 * 5 : word_bytes),
        num_scales(has_kv_scales(dtype) ? num_parts : 0),
        group_bytes(data_bytes + int64_t{num_scales} * kGroup * 4),
        bytes(group_bytes * (spec.block_size / kGroup)) {}

  int32_t dim;  // numbers of a head
  int32_t padded_dim;
  int32_t dtype;
  int64_t word_bytes;   // of the numbers of a group, without last bits
  int64_t data_bytes;   // of the numbers of a group
  int32_t num_scales;   // of a token
  int64_t group_bytes;  // with its scales
  int64_t bytes;
};

// How the layers of one group lie in their blocks.
struct KvLayout {
  KvLayout(const quire_kv_spec& spec, int32_t layer_group)
      : block_size(spec.block_size),
        num_kv_heads(spec.num_kv_heads[layer_group]),
        keys(spec.key_dim[layer_group], spec, true, spec.value_dim[layer_group] == 0 ? 2 : 1),
        values(spec.value_dim[layer_group], spec, false),
        head_bytes(keys.bytes + values.bytes),
        slot_bytes(head_bytes * num_kv_heads) {}

  // Latent: values are part of the keys, which lie row by row.
  bool is_latent() const { return num_kv_heads > 0 && values.dim == 0; }
  // From K of the group of 16 tokens that holds `position` to its V.
  int64_t value_offset(int64_t position) const {
    const int64_t number = position % block_size / kGroup;
    return keys.bytes + number * (values.group_bytes - keys.group_bytes);
  }
  // Whether attention reads it.
  bool has_values() const { return values.dim > 0; }

  bool same_shape(const KvLayout& other) const {
    return num_kv_heads == other.num_kv_heads && keys.dim == other.keys.dim &&
           values.dim == other.values.dim;
  }

  int32_t block_size;
  int32_t num_kv_heads;
  KvSide keys;
  KvSide values;
  int64_t head_bytes;
  int64_t slot_bytes;
};

// Of each layer group.
inline std::vector<KvLayout> kv_layouts(const quire_kv_spec& spec) {
  std::vector<KvLayout> layouts;
  for (int32_t g = 0; g < spec.num_layer_groups; ++g) layouts.emplace_back(spec, g);
  return layouts;
}

inline int64_t kv_block_bytes(const quire_kv_spec& spec) {
  int64_t widest = 0;
  for (const KvLayout& layout : kv_layouts(spec)) widest = std::max(widest, layout.slot_bytes);
  return std::max(widest * spec.num_slots, spec.least_block_bytes);
}

class KvCache {
 public:
  explicit KvCache(const quire_kv_spec& spec)
      : num_slots(spec.num_slots),
        num_blocks(spec.num_blocks),
        block_size(spec.block_size),
        dtype(spec.dtype),
        block_bytes(kv_block_bytes(spec)),
        windows(spec.windows, spec.windows + spec.num_layer_groups),
        state_blocks(spec.state_blocks, spec.state_blocks + spec.num_layer_groups),
        layouts(kv_layouts(spec)),
        memory_(block_bytes * num_blocks) {}

  const int32_t num_slots;
  const int32_t num_blocks;
  const int32_t block_size;
  const int32_t dtype;
  const int64_t block_bytes;
  const std::vector<int32_t> windows;  // of each layer group; 0: none
  const std::vector<int32_t> state_blocks;
  const std::vector<KvLayout> layouts;  // of each layer group

  // The entries of a table of a request with so many tokens.
  int64_t num_entries(int32_t layer_group, int64_t num_tokens) const {
    const int32_t of_state = state_blocks[layer_group];
    return of_state > 0 ? of_state : (num_tokens + block_size - 1) / block_size;
  }

  int32_t num_layer_groups() const { return static_cast<int32_t>(windows.size()); }

  // The first entry of a request's table that a token at or after `position` reads.
  int64_t first_entry(int32_t layer_group, int64_t position) const {
    const int32_t window = windows[layer_group];
    return window == 0 ? 0 : std::max<int64_t>(position - window + 1, 0) / block_size;
  }

  uint8_t* block(int32_t id) const { return memory_.data() + id * block_bytes; }

  // K of a head, for the group of 16 tokens that holds position `position`, given the request's
  // block table.
  uint8_t* key_group(const quire_kv_place& place, const int32_t* table, int64_t position,
                     int32_t kv_head) const {
    const KvLayout& layout = layouts[place.layer_group];
    return block(table[position / block_size]) + place.slot * layout.slot_bytes +
           kv_head * layout.head_bytes + position % block_size / kGroup * layout.keys.group_bytes;
  }

  // V of the same head and tokens, given where K is.
  uint8_t* value_group(const KvLayout& layout, uint8_t* key_group, int64_t position) const {
    return key_group + layout.value_offset(position);
  }

  size_t bytes() const { return memory_.size(); }
  void discard() { memory_.discard(); }

 private:
  Reservation memory_;
};

}  // namespace quire

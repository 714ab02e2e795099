// The paged KV cache: where the keys and values of a token lie.
//
// A block holds `block_size` tokens of all layers and heads in one piece, so that copying a block
// out or in is one memcpy, and memory is committed block by block as blocks are used. In it:
//   [layer][kv head][K | V], and within a head, for every 16 tokens (a "group")
//   K  [padded_dim / w][16][w]     w numbers of a token side by side, tokens next: one vector load
//   V  [16 / w][padded_dim][w]     gives 16 tokens (K) or 16 numbers of w tokens (V)
// with w = 2 for bfloat16 (the operand order of vdpbf16ps and of AMX tiles), 1 for float32 and 4
// for int8. Behind the numbers of an int8 group lie 16 floats: what a token's numbers are
// multiplied by.
#pragma once

#include <cstdint>
#include <cstring>

#include "quire.h"
#include "runtime/memory.h"

namespace quire {

constexpr int kGroup = 16;      // tokens
constexpr int kHeadAlign = 32;  // head_dim is padded with zeros to this: the depth of an AMX tile

// Bytes of one number in the cache.
constexpr int64_t kv_item_bytes(int32_t dtype) {
  return dtype == QUIRE_F32 ? 4 : dtype == QUIRE_BF16 ? 2 : 1;
}

struct KvLayout {
  explicit KvLayout(const quire_kv_spec& spec)
      : block_size(spec.block_size),
        num_layers(spec.num_layers),
        num_kv_heads(spec.num_kv_heads),
        head_dim(spec.head_dim),
        padded_dim(static_cast<int32_t>(round_up(spec.head_dim, kHeadAlign))),
        dtype(spec.dtype),
        data_bytes(int64_t{kGroup} * padded_dim * kv_item_bytes(dtype)),
        group_bytes(data_bytes + (dtype == QUIRE_INT8 ? int64_t{kGroup} * 4 : 0)),
        half_bytes(group_bytes * (block_size / kGroup)),
        head_bytes(2 * half_bytes),
        layer_bytes(head_bytes * num_kv_heads),
        block_bytes(layer_bytes * num_layers) {}

  int32_t block_size;
  int32_t num_layers;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t padded_dim;
  int32_t dtype;
  int64_t data_bytes;  // of a group, its scales not counted
  int64_t group_bytes;
  int64_t half_bytes;
  int64_t head_bytes;
  int64_t layer_bytes;
  int64_t block_bytes;
};

class KvCache {
 public:
  explicit KvCache(const quire_kv_spec& spec)
      : layout(spec), num_blocks(spec.num_blocks), memory_(layout.block_bytes * num_blocks) {}

  const KvLayout layout;
  const int32_t num_blocks;

  uint8_t* block(int32_t id) const { return memory_.data() + id * layout.block_bytes; }

  // The K half of one head in one block, the V half lies `half_bytes` behind it.
  uint8_t* head(int32_t id, int32_t layer, int32_t head) const {
    return block(id) + layer * layout.layer_bytes + head * layout.head_bytes;
  }

  // The group of 16 tokens that holds position `position`, given the request's block table.
  uint8_t* key_group(const int32_t* table, int64_t position, int32_t layer, int32_t kv_head) const {
    const int64_t place = position % layout.block_size;
    return head(table[position / layout.block_size], layer, kv_head) +
           place / kGroup * layout.group_bytes;
  }

  size_t bytes() const { return memory_.size(); }

 private:
  Reservation memory_;
};

}  // namespace quire

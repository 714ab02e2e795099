// Puts keys and values of up to 16 tokens of one head into their group of the cache (the layout is
// kv_cache.h's).
#pragma once

#include "runtime/kv_cache.h"

namespace quire {

constexpr int kMaxHeadDim = 512;

// `rows[i]` holds token `place + i` of the group, padded with zeros to padded_dim. For an int4
// cache it is rotated (hadamard.h).
void write_keys(const KvSide& side, uint8_t* group, int place, int count,
                const float (*rows)[kMaxHeadDim]);
void write_values(const KvSide& side, uint8_t* group, int place, int count,
                  const float (*rows)[kMaxHeadDim]);

}  // namespace quire

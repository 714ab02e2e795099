// Zeros in a copy of a block, for tokens that it does not hold yet (the layout is kv_cache.h's).
#pragma once

#include "runtime/kv_cache.h"

namespace quire {

// `block`: of a layer group of `num_layers` layers. Its first `num_tokens` tokens stay as they are.
void clear_behind(const KvCache& cache, int32_t layer_group, int32_t num_layers, int32_t num_tokens,
                  uint8_t* block);

}  // namespace quire

// Which tokens a row may choose, as bits: TokenMasks of sampling/columns.py.
#pragma once

#include <algorithm>
#include <cstdint>

#include "quire.h"
#include "sampling/logits_row.h"

namespace quire {

constexpr int64_t kMaskBits = 32;  // of a word

// The words of row `l`; null: it may choose any token.
inline const uint32_t* mask_of(const quire_token_masks& masks, int64_t l, int32_t vocab_size) {
  if (!masks.index || masks.index[l] < 0) return nullptr;
  return masks.words + masks.index[l] * ((vocab_size + kMaskBits - 1) / kMaskBits);
}

// Forbids the tokens begin .. end - 1 that the mask leaves out; `begin` is a multiple of kMaskBits.
// Whether there are any.
inline bool forbid(const uint32_t* words, float* logits, int64_t begin, int64_t end) {
  bool is_changed = false;
  for (int64_t first = begin; first < end; first += kMaskBits) {
    const uint32_t word = words[first / kMaskBits];
    if (word == ~0u) continue;
    is_changed = true;
    const int64_t count = std::min(kMaskBits, end - first);
    for (int64_t bit = 0; bit < count; ++bit) {
      logits[first + bit] = word >> bit & 1 ? logits[first + bit] : -kInfinity;
    }
  }
  return is_changed;
}

}  // namespace quire

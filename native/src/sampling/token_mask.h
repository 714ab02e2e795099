// Which tokens a row may choose, as bits: TokenMasks of sampling/columns.py.
#pragma once

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

// Forbids those of 32 tokens whose bits are not set.
QUIRE_INLINE void forbid_some(uint32_t word, float* logits) {
  alignas(64) static constexpr int32_t kBits[kLanes] = {
      1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
      1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  const I32x16 bits = gemm::load<I32x16>(kBits);
  for (int64_t first = 0; first < kMaskBits; first += kLanes) {
    const auto half = static_cast<int32_t>(word >> first & 0xffff);
    const F32x16 v = load_f32(logits + first);
    gemm::store(logits + first, gemm::select((bits & half) == bits, v, splat(-kInfinity)));
  }
}

// Forbids the tokens begin .. end - 1 that the mask leaves out; `begin` is a multiple of kMaskBits.
// Whether there are any.
inline bool forbid(const uint32_t* words, float* logits, int64_t begin, int64_t end) {
  bool is_changed = false;
  for (int64_t first = begin; first < end; first += kMaskBits) {
    const uint32_t word = words[first / kMaskBits];
    if (word == ~0u) continue;
    is_changed = true;
    if (end - first >= kMaskBits) {
      forbid_some(word, logits + first);
      continue;
    }
    for (int64_t bit = 0; bit < end - first; ++bit) {
      if ((word >> bit & 1) == 0) logits[first + bit] = -kInfinity;
    }
  }
  return is_changed;
}

}  // namespace quire

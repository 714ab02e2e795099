// Where the K and V of a context lie, chunk by chunk, and what has to be known of them besides.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/bad_values.h"
#include "attention/kernels/kernel.h"
#include "attention/workspace.h"
#include "runtime/model.h"

namespace quire {

inline int64_t span_first(const quire_batch& batch, int64_t token) {
  return batch.span_firsts ? batch.span_firsts[token] : batch.positions[token];
}
inline int64_t span_last(const quire_batch& batch, int64_t token) {
  return batch.span_lasts ? batch.span_lasts[token] : batch.positions[token];
}

// The first position that a token sees.
inline int64_t first_visible(const quire_attention& op, const quire_batch& batch, int64_t token) {
  if (op.spans && op.is_bidirectional) return span_first(batch, token);
  if (op.window == 0) return op.first_key;
  const int64_t position = batch.positions[token];
  if (op.is_chunked) return position / op.window * op.window;
  const int64_t first = std::max<int64_t>(position - op.window + 1, 0);
  return op.spans ? std::min(first, span_first(batch, token)) : first;
}

// The last position that a token sees, in a context of `length` tokens.
inline int64_t last_visible(const quire_attention& op, const quire_batch& batch, int64_t token,
                            int64_t length) {
  if (op.spans) return span_last(batch, token);
  const int64_t position = batch.positions[token];
  if (op.num_keys > 0) return std::min<int64_t>(position, op.num_keys - 1);
  if (!op.is_bidirectional) return position;
  return op.window == 0 ? length - 1 : std::min(position + op.window, length) - 1;
}

// What one kv head of one request has in the cache of a layer, as far as an item sees it.
struct HeadContext {
  const KvCache* kv = nullptr;
  const KvLayout* layout = nullptr;
  quire_kv_place place = {};
  const int32_t* table = nullptr;  // of the request's blocks
  int64_t first = 0;               // position: of the first group that the item's first row sees
  int64_t length = 0;              // tokens
  int head = 0;

  HeadContext() = default;
  HeadContext(const Step& step, const quire_attention& op, const AttentionItem& item, int head_)
      : kv(&step.model.kv),
        layout(&kv->layouts[op.kv.layer_group]),
        place(op.kv),
        table(step.block_table(item.seq, op.kv.layer_group)),
        first(first_of(step, op, item)),
        length(step.batch.context_lens[item.seq]),
        head(head_) {}

  // K of the group that begins with this position; null before and after the context. Blocks
  // that are completely outside the window may be another request's.
  const uint8_t* keys(int64_t position) const {
    const bool is_seen = position >= first && position < length;
    return is_seen ? kv->key_group(place, table, position, head) : nullptr;
  }

 private:
  static int64_t first_of(const Step& step, const quire_attention& op, const AttentionItem& item) {
    const KvLayout& layout = step.model.kv.layouts[op.kv.layer_group];
    const int32_t group = op.num_heads / layout.num_kv_heads;
    const int64_t token = step.batch.seq_starts[item.seq] + item.first_row / group;
    return first_visible(op, step.batch, token) / kGroup * kGroup;
  }
};

// Groups of a chunk, the last not included.
struct Groups {
  int first;
  int last;
};

// A chunk as the kernels take it. The worker reads `next` afterwards, of the same context or the
// first chunk of another: only a hint, hence not exact for parts.
struct ChunkPlace {
  const HeadContext& context;
  int64_t chunk;
  const HeadContext& next;
  int64_t next_chunk;
};

template <class Kernel>
ChunkView view_chunk(const ChunkPlace& place, Groups groups, const Workspace& space) {
  ChunkView view;
  const KvLayout& layout = *place.context.layout;
  view.first = groups.first;
  view.last = groups.last;
  view.data_bytes = layout.keys.data_bytes;
  view.fresh = true;
  view.scores_fetch = Kernel::kFetchesInScores;
  view.values_fetch = Kernel::kFetchesInValues;
  view.tile_space = space.chunk;
  view.key_space = space.keys;
  view.key_scales = space.key_scales;
  for (int g = groups.first; g < groups.last; ++g) {
    const int64_t position = place.chunk * kChunk + g * kGroup;
    view.keys[g] = place.context.keys(position);
    view.values[g] = view.keys[g] + layout.value_offset(position);
    view.next_keys[g] = place.next.keys(place.next_chunk * kChunk + g * kGroup);
  }
  const int ahead = std::min(Kernel::kGroupsAhead, groups.last - groups.first);
  for (int g = groups.first; g < groups.last; ++g) {
    const bool here = g + ahead < groups.last;
    const int there = g + ahead - (groups.last - groups.first);
    view.prefetch_keys[g] = here ? view.keys[g + ahead] : view.values[there];
    view.prefetch_values[g] = here ? view.values[g + ahead] : view.next_keys[there];
  }
  return view;
}

// The scales of a chunk's groups, times `unit`: they follow the numbers. Fetches those of
// `fetch`.
inline void load_scales(const ChunkView& view, const KvSide& side, const uint8_t* const* groups,
                        const uint8_t* const* fetch, float unit, float* scales) {
  for (int g = view.first; g < view.last; ++g) {
    gemm::store(scales + g * kGroup, gemm::load<F32x16>(groups[g] + side.data_bytes) * unit);
    if (fetch[g]) __builtin_prefetch(fetch[g] + side.data_bytes, 0, 2);
  }
}

// Replaces a V group of which not all tokens exist by a copy: the memory after them does not belong
// to the request, and 0 * NaN is NaN. For caches of floating-point numbers, once this step's V is
// there.
inline void hide_tail(const ChunkPlace& place, uint8_t* copy, ChunkView& view) {
  const int64_t end = place.context.length - place.chunk * kChunk;
  const int64_t g = end / kGroup;
  const int64_t count = end % kGroup;
  if (count == 0 || g < view.first || g >= view.last) return;
  const KvSide& side = place.context.layout->values;
  std::memcpy(copy, view.values[g], side.group_bytes);
  view.values[g] = copy;
  for (int t = static_cast<int>(count); t < kGroup; ++t) clear_values_of_token(side, copy, t);
}

}  // namespace quire

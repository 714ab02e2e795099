// What one worker does for a piece of attention: the query rows of an item against some chunks of
// its context, chunk by chunk with a running softmax, and the merging of pieces done apart.
//
// The same for every tier and KV format; `Kernel` has the products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/attention.h"
#include "attention/bad_values.h"
#include "attention/context.h"
#include "attention/hadamard.h"
#include "attention/kernels/kernel.h"
#include "attention/kv_write.h"
#include "attention/softmax.h"
#include "attention/workspace.h"
#include "runtime/model.h"

namespace quire {

// Rows of q, or of the result, that are on their way while one is worked on: they lie too far apart
// for the hardware prefetcher.
constexpr int kRowsAhead = 16;

template <class Kernel>
class Attend {
 public:
  using Elem = typename Kernel::Elem;

  Attend(const Step& step, const quire_attention& op, int worker)
      : step_(step),
        op_(op),
        layout_(step.model.kv.layouts[op.kv.layer_group]),
        dim_(layout_.keys.padded_dim),
        group_(op.num_heads / layout_.num_kv_heads),
        space_(step.model.attention.worker(worker), dim_),
        rule_(rule_of(step, op)),
        is_rotated_(layout_.keys.dtype == QUIRE_INT4) {}

  // Part of one item's context for one kv head, and what this worker does next.
  struct Unit {
    const AttentionItem* item;  // null: nothing
    int part;
    int head;
  };

  void work(const Unit& unit, const Unit& next) {
    const AttentionItem& item = *unit.item;
    const int part = unit.part;
    begin(item, unit.head);
    next_ = next.item ? HeadContext(step_, op_, *next.item, next.head) : HeadContext();
    const int64_t count = last_chunk_ - first_chunk_;
    const int64_t from = first_chunk_ + count * part / item.parts;
    const int64_t to = first_chunk_ + count * (part + 1) / item.parts;
    if (from == to) return;
    load_queries();
    Kernel::begin_item(item.num_rows);
    for (int64_t chunk = from; chunk < to; ++chunk) {
      const ChunkUse use = item.parts > 1  ? ChunkUse::kKept
                           : chunk == from ? ChunkUse::kFirst
                                           : ChunkUse::kMerged;
      attend_chunk(chunk, chunk + 1 < to, use);
    }
    if (item.parts == 1) write_result();
  }

  // Merges the chunks of a split item.
  void merge(const AttentionItem& item, int head) {
    begin(item, head);
    space_.state.clear(item.num_rows);
    std::fill_n(space_.result, int64_t{item.num_rows} * dim_, 0.0f);
    const int64_t stride = partial_floats(layout_);
    for (int64_t chunk = first_chunk_; chunk < last_chunk_; ++chunk) {
      const float* rows = partial_rows(chunk);
      for (int r = 0; r < item.num_rows; ++r) {
        const float* row = rows + r * stride;
        std::copy_n(row, dim_, space_.partial);
        space_.of_chunk.maximum[0] = row[dim_];
        space_.of_chunk.sum[0] = row[dim_ + 1];
        merge_rows(space_.state, r, 1, space_.of_chunk, space_.result, space_.partial, dim_);
      }
    }
    write_result();
  }

 private:
  void begin(const AttentionItem& item, int head) {
    item_ = &item;
    context_ = HeadContext(step_, op_, item, head);
    first_token_ = step_.batch.seq_starts[item.seq];
    first_chunk_ = context_.first / kChunk;
    last_chunk_ = last_seen(token(item.num_rows - 1)) / kChunk + 1;
  }

  static ScoreRule rule_of(const Step& step, const quire_attention& op) {
    ScoreRule rule{op.scale, op.softcap, step.vector(op.alibi)};
    if (op.relative >= 0) {
      const Vector& biases = step.model.vectors[op.relative];
      rule.biases = biases.data();
      rule.reach = static_cast<int64_t>(biases.size()) / op.num_heads / 2;
    }
    return rule;
  }

  int64_t last_seen(int64_t token) const {
    return last_visible(op_, step_.batch, token, context_.length);
  }

  int64_t token(int row) const { return first_token_ + (item_->first_row + row) / group_; }
  int query_head(int row) const {
    return context_.head * group_ + (item_->first_row + row) % group_;
  }

  // Where a split item keeps this chunk's results: [head][chunk][row].
  float* partial_rows(int64_t chunk) const {
    const int64_t before = context_.head * max_chunks(context_.length) + chunk - first_chunk_;
    const int64_t row = item_->partial_rows + before * item_->num_rows;
    return step_.model.attention.partials() + row * partial_floats(layout_);
  }

  static int64_t size_of(const quire_view& view) { return view.dtype == QUIRE_F32 ? 4 : 2; }
  // Of a row's head in a view of all heads.
  const uint8_t* place_of(const quire_view& view, int row) const {
    return step_.row(view, token(row)) + query_head(row) * layout_.keys.dim * size_of(view);
  }

  void load_queries() {
    const int64_t head_dim = layout_.keys.dim;
    const int rows = static_cast<int>(round_up(item_->num_rows, Kernel::kRowStep));
    const int64_t row_bytes = head_dim * size_of(op_.q);
    for (int r = 0; r < rows; ++r) {
      Elem* out = reinterpret_cast<Elem*>(space_.q) + r * dim_;
      if (const int ahead = r + kRowsAhead; ahead < item_->num_rows) {
        fetch_lines(place_of(op_.q, ahead), row_bytes);
      }
      const bool real = r < item_->num_rows;
      const uint8_t* q = real ? step_.row(op_.q, token(r)) : nullptr;
      const int64_t first = real ? query_head(r) * head_dim : 0;
      alignas(64) float numbers[kMaxHeadDim];
      for (int64_t d = 0; d < dim_; d += kLanes) {
        F32x16 v = {};
        if (real && d < head_dim) {
          v = load_some(q, op_.q.dtype, first + d, std::min<int64_t>(head_dim - d, kLanes));
        }
        gemm::store(numbers + d, v);
      }
      if (is_rotated_) rotate_head(numbers, dim_);
      Kernel::put_query(numbers, dim_, out);
    }
  }

  // What a token sees of a chunk.
  Visible visible(int64_t token, int64_t chunk) const {
    const int64_t base = chunk * kChunk;
    return visible_places(first_visible(op_, step_.batch, token) - base, last_seen(token) - base);
  }

  // Groups of the chunk that any row of [r0, r1) may see.
  Groups visible_groups(int64_t chunk, int r0, int r1) const {
    const int64_t base = chunk * kChunk;
    const int64_t low = first_visible(op_, step_.batch, token(r0)) - base;
    const int64_t high = std::min<int64_t>(last_seen(token(r1 - 1)) - base, kChunk - 1);
    return {static_cast<int>(std::max<int64_t>(low, 0) / kGroup),
            static_cast<int>(high < 0 ? 0 : high / kGroup + 1)};
  }

  // Scores of a tile of rows. The first tile may have to expand an int8 chunk's K: a few groups at
  // a time, read while they are near, unless further tiles will read them too.
  void score(const Elem* q, int rows, Groups groups, ChunkView& view) {
    if constexpr (Kernel::kScaleUnit != 0) {
      if (view.fresh) {
        load_scales(view, layout_.keys, view.keys, view.values, Kernel::kScaleUnit,
                    space_.key_scales);
      }
    }
    if constexpr (Kernel::kExpands) {
      if (view.fresh) {
        const bool alone = item_->num_rows <= Kernel::kRows;
        view.key_slots = alone ? kCachedGroups : kChunkGroups;
        for (int g = view.first; g < view.last; g += view.key_slots) {
          const int end = std::min(g + view.key_slots, view.last);
          Kernel::load_keys(view, dim_, g, end);
          if (alone) Kernel::scores(q, rows, dim_, view, g, end, space_.scores);
        }
        if (alone) return;
      }
    }
    Kernel::scores(q, rows, dim_, view, groups.first, groups.last, space_.scores);
  }

  // Where the results of some rows go.
  struct Results {
    float* maximum;
    float* sum;
    float* values;  // [row][dim]

    void clear(int rows, int64_t dim) const {
      std::fill_n(maximum, rows, -std::numeric_limits<float>::infinity());
      std::fill_n(sum, rows, 0.0f);
      std::fill_n(values, rows * dim, 0.0f);
    }
  };

  // What becomes of a chunk's results: the first ones are the item's state, later ones are merged
  // into it, and those of a split item are kept for merge().
  enum class ChunkUse { kFirst, kMerged, kKept };

  // All rows of the item against one chunk.
  void attend_chunk(int64_t chunk, bool more, ChunkUse use) {
    const ChunkPlace place{context_, chunk, more ? context_ : next_,
                           more ? chunk + 1 : next_.first / kChunk};
    ChunkView view = view_chunk<Kernel>(place, visible_groups(chunk, 0, item_->num_rows), space_);
    BadValues bad;
    for (int r0 = 0; r0 < item_->num_rows; r0 += Kernel::kRows) {
      const int r1 = std::min(r0 + Kernel::kRows, item_->num_rows);
      const Groups groups = visible_groups(chunk, r0, r1);
      const bool first = use == ChunkUse::kFirst;
      const Results out =
          first
              ? Results{space_.state.maximum + r0, space_.state.sum + r0, space_.result + r0 * dim_}
              : Results{space_.of_chunk.maximum, space_.of_chunk.sum, space_.partial};
      if (groups.first < groups.last) {
        attend_tile(place, r0, r1, groups, view, bad, out);
      } else {
        out.clear(r1 - r0, dim_);
      }
      if (use == ChunkUse::kMerged) {
        merge_rows(space_.state, r0, r1 - r0, space_.of_chunk, space_.result, space_.partial, dim_);
      } else if (use == ChunkUse::kKept) {
        keep_partials(r1 - r0, partial_rows(chunk) + r0 * partial_floats(layout_));
      }
    }
  }

  void keep_partials(int rows, float* out) const {
    for (int r = 0; r < rows; ++r, out += partial_floats(layout_)) {
      std::copy_n(space_.partial + r * dim_, dim_, out);
      out[dim_] = space_.of_chunk.maximum[r];
      out[dim_ + 1] = space_.of_chunk.sum[r];
    }
  }

  void attend_tile(const ChunkPlace& place, int r0, int r1, Groups groups, ChunkView& view,
                   BadValues& bad, const Results& out) {
    const int rows = r1 - r0;
    const Elem* q = reinterpret_cast<const Elem*>(space_.q) + r0 * dim_;
    Elem* weights = reinterpret_cast<Elem*>(space_.weights);
    score(q, rows, groups, view);
    TokenScales scales = {};
    if constexpr (Kernel::kScaleUnit != 0) {
      if (view.fresh) {
        load_scales(view, layout_.values, view.values, view.next_keys, Kernel::kScaleUnit,
                    space_.value_scales);
      }
      scales = {Kernel::kScalesKeys ? nullptr : space_.key_scales, space_.value_scales};
    }
    // Pairs of groups, so that a step of the second product finds zeros where nothing is seen.
    const int begin = groups.first / 2 * 2 * kGroup;
    const int end = (groups.last + 1) / 2 * 2 * kGroup;
    ScoreRow score_rows[kMaxTileRows];
    place_rows(place, r0, rows, score_rows);
    for (int r = 0; r < rows; ++r) {
      find_largest(rule_, scales, score_rows[r], space_.scores + r * kScoreStride);
      out.maximum[r] = score_rows[r].maximum;
    }
    using Weights = typename Kernel::Weights;
    for (int r = 0; r < rows; ++r) {
      out.sum[r] = weigh<Weights>(rule_, scales, score_rows[r], begin, end,
                                  space_.scores + r * kScoreStride, weights + r * kWeightStride);
    }
    for (int r = 0; r < rows; ++r) {
      Weights::settle(space_.scores + r * kScoreStride, begin, end, weights + r * kWeightStride);
    }
    if (view.fresh) {
      if constexpr (Kernel::kScaleUnit == 0) hide_tail(place, space_.tail, view);
      Kernel::load_values(view, dim_);
    }
    Kernel::values(weights, rows, dim_, view, groups.first, groups.last, out.values);
    view.fresh = view.scores_fetch = view.values_fetch = false;
    if constexpr (Kernel::kScaleUnit == 0) {
      // One row is enough: each has multiplied the same V.
      if (bad.any() || !BadValues::all_finite(out.values, dim_)) {
        hide_bad_values(place, r0, r1, groups, view, bad, out.values);
      }
    }
  }

  // Rows r0 .. r0 + count - 1, before their scores are known.
  void place_rows(const ChunkPlace& place, int r0, int count, ScoreRow* rows) const {
    // Counted, as a division per row is slow compared with the work of a row over an int8 cache.
    int64_t row_token = token(r0);
    int head = query_head(r0);
    const int heads_end = (context_.head + 1) * group_;
    // What a row sees begins and ends no earlier than what the row before it sees.
    const Visible last = visible(token(r0 + count - 1), place.chunk);
    Visible seen = visible(row_token, place.chunk);
    const bool alike = seen.high == WholeChunk::high && last.low == WholeChunk::low;
    for (int r = 0; r < count; ++r) {
      const int64_t row_position = step_.batch.positions[row_token];
      if (!alike) seen = visible(row_token, place.chunk);
      rows[r] = {head, row_position - place.chunk * kChunk, seen, 0};
      if (++head == heads_end) {
        head -= group_;
        ++row_token;
      }
    }
  }

  // Computes without values that are not finite for rows that do not see them; `out` are a tile's
  // results.
  void hide_bad_values(const ChunkPlace& place, int r0, int r1, Groups groups, ChunkView& view,
                       BadValues& bad, float* out) {
    if (!bad.any()) {
      bad.hide(layout_.values, space_.keys, view);
      if (!bad.any()) return;
      const Elem* weights = reinterpret_cast<const Elem*>(space_.weights);
      Kernel::load_values(view, dim_);
      Kernel::values(weights, r1 - r0, dim_, view, groups.first, groups.last, out);
    }
    for (int r = r0; r < r1; ++r, out += dim_) {
      bad.set_nan(visible(token(r), place.chunk), out, dim_);
    }
  }

  // Of a row's sink, relative to its largest score, like the sum of the others.
  float sink_weight(int row) const {
    const float* sinks = step_.vector(op_.sinks);
    if (sinks == nullptr) return 0.0f;
    return std::exp2(sinks[query_head(row)] * kLog2E - space_.state.maximum[row]);
  }

  void write_result() {
    const int64_t head_dim = layout_.keys.dim;
    const int64_t row_bytes = head_dim * size_of(op_.out);
    for (int r = 0; r < item_->num_rows; ++r) {
      if (const int ahead = r + kRowsAhead; ahead < item_->num_rows) {
        fetch_lines_to_write(place_of(op_.out, ahead), row_bytes);
      }
      // Whether chunks were merged must not show: merging makes of -0 a 0.
      const float inverse = 1.0f / (space_.state.sum[r] + sink_weight(r));
      uint8_t* out = step_.row(op_.out, token(r));
      float* result = space_.result + r * dim_;
      if (is_rotated_) rotate_head(result, dim_);
      for (int64_t d = 0; d < head_dim; d += kLanes) {
        store_some(out, op_.out.dtype, query_head(r) * head_dim + d,
                   std::min<int64_t>(head_dim - d, kLanes), load_f32(result + d) * inverse + 0.0f);
      }
    }
  }

  const Step& step_;
  const quire_attention& op_;
  const KvLayout& layout_;
  const int64_t dim_;
  const int group_;
  Workspace space_;
  const ScoreRule rule_;
  const bool is_rotated_;  // q, K and V are, in an int4 cache, and so is the sum of V

  const AttentionItem* item_ = nullptr;
  HeadContext context_;
  HeadContext next_;  // what this worker reads afterwards
  int64_t first_token_ = 0;
  int64_t first_chunk_ = 0;
  int64_t last_chunk_ = 0;
};

}  // namespace quire

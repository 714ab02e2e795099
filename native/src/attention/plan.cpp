// How the attention of a step is shared out: computed once, used by every layer of a shape.
#include <algorithm>
#include <vector>

#include "attention/attention.h"
#include "runtime/model.h"

namespace quire {
namespace {

// Neighbouring tokens of one request that attend; `first` and `last`, not included, count from the
// beginning of the step.
struct Queries {
  int32_t seq;
  int32_t first;
  int32_t last;
};

std::vector<Queries> all_queries(const quire_batch& batch) {
  std::vector<Queries> all;
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    all.push_back({seq, batch.seq_starts[seq], batch.seq_starts[seq + 1]});
  }
  return all;
}

std::vector<Queries> taken_queries(const quire_batch& batch) {
  std::vector<int32_t> tokens(batch.logits_rows, batch.logits_rows + batch.num_logits_rows);
  std::sort(tokens.begin(), tokens.end());
  std::vector<Queries> taken;
  int32_t seq = 0;
  for (const int32_t token : tokens) {
    while (token >= batch.seq_starts[seq + 1]) ++seq;
    if (!taken.empty() && taken.back().seq == seq && token <= taken.back().last) {
      taken.back().last = token + 1;
    } else {
      taken.push_back({seq, token, token + 1});
    }
  }
  return taken;
}

// Large items read K and V less often, small ones share the work better.
int32_t choose_item_rows(const Model& model, int64_t heads, int64_t query_rows) {
  int32_t rows = kItemRows;
  while (rows > kMaxTileRows && query_rows / rows * heads < 8 * int64_t{model.pool.size()}) {
    rows /= 2;
  }
  return rows;
}

// Where there is less work than workers, long contexts are cut between chunks. Only as far as the
// chunks' results fit their memory.
void split_items(const Model& model, const KvLayout& layout, const quire_batch& batch,
                 AttentionPlan& plan) {
  const int64_t heads = layout.num_kv_heads;
  const int64_t units = static_cast<int64_t>(plan.items.size()) * heads;
  const int64_t wanted = 4 * int64_t{model.pool.size()};
  if (model.pool.size() == 1 || units == 0 || units >= wanted) return;
  const int64_t capacity = kPartialBytes / (4 * partial_floats(layout));
  int64_t rows = 0;
  for (AttentionItem& item : plan.items) {
    const int64_t chunks = max_chunks(batch.context_lens[item.seq]);
    const int64_t needed = heads * chunks * item.num_rows;
    if (chunks == 1 || rows + needed > capacity) continue;
    item.parts = static_cast<int32_t>(std::min(chunks, (wanted + units - 1) / units));
    item.partial_rows = rows;
    rows += needed;
    plan.split = true;
  }
}

AttentionPlan plan_of(const Model& model, const KvLayout& layout, const quire_batch& batch,
                      const std::vector<Queries>& all) {
  AttentionPlan plan;
  if (!layout.has_values()) return plan;  // of a state, or latent
  // Query heads per kv head.
  const int32_t group = std::max(1, model.num_query_heads / layout.num_kv_heads);
  int64_t tokens = 0;
  for (const Queries& queries : all) tokens += queries.last - queries.first;
  const int32_t item_rows = choose_item_rows(model, layout.num_kv_heads, tokens * group);
  for (const Queries& queries : all) {
    const int32_t start = batch.seq_starts[queries.seq];
    const int32_t end = (queries.last - start) * group;
    for (int32_t row = (queries.first - start) * group; row < end; row += item_rows) {
      const int32_t count = std::min(item_rows, end - row);
      const int64_t last = batch.positions[start + (row + count - 1) / group];
      plan.items.push_back({queries.seq, row, count, 1, 0, (last + 1) * ((count + 15) / 16)});
    }
  }
  std::stable_sort(plan.items.begin(), plan.items.end(),
                   [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; });
  split_items(model, layout, batch, plan);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    for (int32_t part = 0; part < plan.items[i].parts; ++part) {
      plan.pieces.push_back({static_cast<int32_t>(i), part});
    }
  }
  return plan;
}

}  // namespace

AttentionPlans::AttentionPlans(const Model& model, const quire_batch& batch, bool taken_only) {
  const std::vector<KvLayout>& layouts = model.kv.layouts;
  const std::vector<Queries> all = taken_only ? taken_queries(batch) : all_queries(batch);
  for (size_t g = 0; g < layouts.size(); ++g) {
    size_t like = 0;
    while (!layouts[like].same_shape(layouts[g])) ++like;
    if (like == g) {
      index_.push_back(plans_.size());
      plans_.push_back(plan_of(model, layouts[g], batch, all));
    } else {
      index_.push_back(index_[like]);
    }
  }
}

}  // namespace quire

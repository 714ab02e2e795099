// Paged attention: every query row of a step against the keys and values of its request.
//
// The arithmetic of a row is fixed by its own position alone. Positions are taken in chunks of 256
// from position 0; a chunk gives (maximum, sum, weighted values) relative to its own maximum, and
// chunks are merged one after the other in the order of positions. Whether a row is computed alone
// or in a tile with others, by one worker or with the chunks spread over several, changes no bit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "quire.h"
#include "runtime/kv_cache.h"

namespace quire {

struct Step;
struct Model;

constexpr int kChunk = 256;       // positions
constexpr int kItemRows = 256;    // query rows of a kv head in one pass over K and V, at most
constexpr int kMaxTileRows = 32;  // query rows that a kernel takes at once, at most
constexpr size_t kPartialBytes = size_t{64} << 20;  // for the chunk results of split items

// Distances between rows of scores and of weights: not a power of two, so that the rows of a tile
// do not compete for the same cache lines.
constexpr int64_t kScoreStride = kChunk + 16;
constexpr int64_t kWeightStride = kChunk + 32;

// Query rows of one kv head: row f of a request is its new token f / group, query head f % group of
// that kv head.
struct AttentionItem {
  int32_t seq;
  int32_t first_row;
  int32_t num_rows;
  int32_t parts;         // pieces of the context given to different workers; 1: no split
  int64_t partial_rows;  // rows of results before this item's, one kv head, if split
  int64_t cost;
};

// The step's work, the same for all layers of one shape, most expensive first.
struct AttentionPlan {
  struct Piece {
    int32_t item;
    int32_t part;
  };
  std::vector<AttentionItem> items;
  std::vector<Piece> pieces;
  bool split = false;
};

// Memory of attention: one workspace a worker, and the chunk results of split items.
class AttentionScratch {
 public:
  AttentionScratch(const std::vector<KvLayout>& layouts, int num_workers);
  uint8_t* worker(int index) const { return workers_.data() + index * worker_bytes_; }
  int64_t most_bytes() const { return workers_.most_bytes() + partials_.most_bytes(); }
  float* partials() const { return reinterpret_cast<float*>(partials_.data()); }

 private:
  size_t worker_bytes_;
  Reservation workers_;
  Reservation partials_;
};

// Chunks that a context of so many tokens spans.
inline int64_t max_chunks(int64_t context) { return (context + kChunk - 1) / kChunk; }

// Floats that one row's result of one chunk takes.
inline int64_t partial_floats(const KvLayout& layout) { return layout.values.padded_dim + 16; }

// The plans of a step: one for each shape of heads that layer groups have.
class AttentionPlans {
 public:
  AttentionPlans() = default;
  // For all tokens of the step, or only for those whose logits are wanted.
  AttentionPlans(const Model& model, const quire_batch& batch, bool taken_only);

  const AttentionPlan& of(int32_t layer_group) const { return plans_[index_[layer_group]]; }

 private:
  std::vector<AttentionPlan> plans_;
  std::vector<size_t> index_;  // of each layer group's
};

}  // namespace quire

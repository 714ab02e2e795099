// Latent attention: all query heads read one row of numbers for each token, and the values are the
// first numbers of the same row.
//
// A lane of a vector is a query head, so nothing is summed across lanes: scores of a token are q's
// columns times its numbers, and the result's rows are the weights times its numbers. Tokens are
// taken in groups of 16 positions from 0 on; each group is widened to float32 once, for the scores
// and the values of several tiles: heads of one token, or of neighbouring tokens. The maximum, the
// sum and the result are carried from group to group within a segment, and segments are added.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

constexpr float kLog2E = 1.44269504088896f;
constexpr float kSmallest = 1e-30f;  // below this a row counts as zeros

const KvLayout& layout_of(const Step& step, const quire_latent& op) {
  return step.model.kv.layouts[op.kv.layer_group];
}

// The group of 16 rows [16][padded_dim] that has `position`. Where they are bytes, 16 scales of the
// latent parts follow and 16 of the rotary parts.
uint8_t* group_of(const Step& step, const quire_latent& op, int32_t seq, int64_t position) {
  const int32_t* table = step.block_table(seq, op.kv.layer_group);
  return step.model.kv.key_group(op.kv, table, position, 0);
}

uint8_t* scale_of(const KvSide& side, uint8_t* group, int64_t part, int64_t place) {
  return group + side.data_bytes + (part * kGroup + place) * 4;
}

// Bytes: the largest of `count` numbers becomes 127. Returns the scale.
float write_bytes(const float* row, int64_t count, int8_t* bytes) {
  float largest = 0.0f;
  bool is_finite = true;
  for (int64_t i = 0; i < count; ++i) {
    is_finite = is_finite && std::isfinite(row[i]);
    largest = std::max(largest, std::fabs(row[i]));
  }
  const float inverse = is_finite && largest >= kSmallest ? 127.0f / largest : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float known = inverse > 0.0f ? row[i] : 0.0f;
    bytes[i] = static_cast<int8_t>(std::nearbyint(known * inverse));
  }
  return is_finite ? largest / 127.0f : std::nanf("");
}

void write_row(const Step& step, const quire_latent& op, int64_t token, int32_t seq, float* wide) {
  const KvSide& side = layout_of(step, op).keys;
  const int64_t position = step.batch.positions[token];
  uint8_t* group = group_of(step, op, seq, position);
  const int64_t place = position % kGroup;
  const uint8_t* k = step.row(op.k, token);
  if (side.dtype == QUIRE_INT8) {
    for (int64_t i = 0; i < side.dim; i += kLanes) {
      store_some(wide, QUIRE_F32, i, side.dim - i, load_some(k, op.k.dtype, i, side.dim - i));
    }
    auto* bytes = reinterpret_cast<int8_t*>(group) + place * side.padded_dim;
    const int64_t ends[] = {0, op.value_dim, side.dim};
    for (int part = 0; part < 2; ++part) {
      const int64_t first = ends[part];
      const float scale = write_bytes(wide + first, ends[part + 1] - first, bytes + first);
      std::memcpy(scale_of(side, group, part, place), &scale, 4);
    }
    return;
  }
  uint8_t* row = group + place * side.padded_dim * (4 / kv_word_numbers(side.dtype));
  for (int64_t i = 0; i < side.dim; i += kLanes) {
    store_some(row, side.dtype, i, side.dim - i, load_some(k, op.k.dtype, i, side.dim - i));
  }
}

// `count` rows of a group as float32 [16][padded_dim].
void widen(const KvSide& side, int64_t latent_dim, uint8_t* group, int64_t count, float* out) {
  for (int64_t place = 0; place < count; ++place) {
    float* row = out + place * side.padded_dim;
    if (side.dtype == QUIRE_INT8) {
      const auto* bytes = reinterpret_cast<const int8_t*>(group) + place * side.padded_dim;
      float scales[2];
      for (int part = 0; part < 2; ++part) {
        std::memcpy(&scales[part], scale_of(side, group, part, place), 4);
      }
      for (int64_t i = 0; i < latent_dim; ++i) row[i] = static_cast<float>(bytes[i]) * scales[0];
      for (int64_t i = latent_dim; i < side.dim; ++i) {
        row[i] = static_cast<float>(bytes[i]) * scales[1];
      }
      continue;
    }
    const uint8_t* from = group + place * side.padded_dim * (4 / kv_word_numbers(side.dtype));
    for (int64_t i = 0; i < side.dim; i += kLanes) {
      store_some(row, QUIRE_F32, i, side.dim - i, load_some(from, side.dtype, i, side.dim - i));
    }
  }
}

// Heads first .. first + count - 1 of one token.
struct HeadTile {
  int32_t token;
  int32_t seq;
  int32_t first;
  int32_t count;
};

constexpr int kTilesTogether = 4;   // that share one read of a group
constexpr int64_t kSegment = 1024;  // positions after which a result begins anew
constexpr int64_t kPartialFloats = 1 << 20;

// The sum of a segment's, or of several segments', weighted values [value_dim][16 heads], with the
// largest score and the sum of the weights before it.
struct Partial {
  float* memory;

  static int64_t floats(int64_t value_dim) { return (value_dim + 2) * kLanes; }
  float* value(int64_t d) const { return memory + (2 + d) * kLanes; }
  F32x16 largest() const { return load_f32(memory); }
  F32x16 total() const { return load_f32(memory + kLanes); }
  void set(F32x16 largest, F32x16 total) const {
    gemm::store(memory, largest);
    gemm::store(memory + kLanes, total);
  }
  void clear(int64_t value_dim) const {
    set(splat(-INFINITY), F32x16{});
    std::fill_n(value(0), value_dim * kLanes, 0.0f);
  }
};

// Adds the segment after those that are in `sum`.
void add_segment(Partial sum, Partial segment, bool is_first, int64_t value_dim) {
  if (is_first) {
    std::copy_n(segment.memory, Partial::floats(value_dim), sum.memory);
    return;
  }
  const F32x16 most = maximum(sum.largest(), segment.largest());
  const F32x16 kept = exp2_nonpositive(sum.largest() - most);
  const F32x16 share = exp2_nonpositive(segment.largest() - most);
  sum.set(most, fma(segment.total(), share, sum.total() * kept));
  for (int64_t d = 0; d < value_dim; ++d) {
    const F32x16 value = load_f32(sum.value(d)) * kept;
    gemm::store(sum.value(d), fma(load_f32(segment.value(d)), share, value));
  }
}

// Memory of a worker, in floats.
struct Space {
  Space(const KvSide& side, int64_t value_dim)
      : rows(0),
        queries(kGroup * side.padded_dim),
        segments(queries + kTilesTogether * side.dim * kLanes),
        sums(segments + kTilesTogether * Partial::floats(value_dim)),
        floats(sums + kTilesTogether * Partial::floats(value_dim)) {}
  int64_t rows;
  int64_t queries;   // [tiles][dim][16 heads]
  int64_t segments;  // a Partial of each tile
  int64_t sums;      // a Partial of each tile
  int64_t floats;
};

// Some tiles of one request, that take each group of positions together.
class TileRun {
 public:
  TileRun(const Step& step, const quire_latent& op, float* memory)
      : step_(step),
        op_(op),
        side_(layout_of(step, op).keys),
        space_(side_, op.value_dim),
        memory_(memory) {}

  void load(const HeadTile* tiles, int count) {
    tiles_ = tiles;
    count_ = count;
    for (int i = 0; i < count; ++i) load_queries(i);
  }

  // All positions that the tiles see.
  void work() {
    const int64_t length = length_of(count_ - 1);
    for (int64_t segment = 0; segment * kSegment < length; ++segment) {
      Partial segments[kTilesTogether];
      for (int i = 0; i < count_; ++i) segments[i] = place(space_.segments, i);
      attend(segment, segments);
      for (int i = 0; i < count_; ++i) {
        if (segment * kSegment >= length_of(i)) continue;
        add_segment(place(space_.sums, i), segments[i], segment == 0, op_.value_dim);
      }
    }
    for (int i = 0; i < count_; ++i) store_result(tiles_[i], place(space_.sums, i));
  }

  // The positions of one segment, as far as a tile sees them.
  void attend(int64_t segment, const Partial* out) {
    for (int i = 0; i < count_; ++i) out[i].clear(op_.value_dim);
    const int64_t last = std::min((segment + 1) * kSegment, length_of(count_ - 1));
    for (int64_t position = segment * kSegment; position < last; position += kGroup) {
      const int64_t most = std::min<int64_t>(kGroup, last - position);
      uint8_t* group = group_of(step_, op_, tiles_[0].seq, position);
      widen(side_, op_.value_dim, group, most, memory_ + space_.rows);
      for (int i = 0; i < count_; ++i) {
        const int64_t seen = std::min<int64_t>(kGroup, length_of(i) - position);
        if (seen > 0) add_group(memory_ + space_.queries + i * side_.dim * kLanes, seen, out[i]);
      }
    }
  }

  void store_result(const HeadTile& tile, Partial sum) const {
    uint8_t* out = step_.row(op_.out, tile.token);
    const F32x16 share = 1.0f / sum.total();
    for (int64_t d = 0; d < op_.value_dim; ++d) {
      gemm::store(sum.value(d), load_f32(sum.value(d)) * share);
    }
    for (int64_t head = 0; head < tile.count; ++head) {
      for (int64_t i = 0; i < op_.value_dim; i += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, op_.value_dim - i);
        float some[kLanes] = {};
        for (int64_t d = 0; d < n; ++d) some[d] = sum.value(i + d)[head];
        store_some(out, op_.out.dtype, (tile.first + head) * op_.value_dim + i, n, load_f32(some));
      }
    }
  }

 private:
  // Positions that a tile sees. Those of later tiles are not fewer.
  int64_t length_of(int i) const { return step_.batch.positions[tiles_[i].token] + 1; }
  Partial place(int64_t first, int i) const {
    return {memory_ + first + i * Partial::floats(op_.value_dim)};
  }
  const float* row(int64_t place) const { return memory_ + space_.rows + place * side_.padded_dim; }

  // In units of log2, so that weights are powers of two.
  void load_queries(int i) {
    const HeadTile& tile = tiles_[i];
    float* query = memory_ + space_.queries + i * side_.dim * kLanes;
    std::fill_n(query, side_.dim * kLanes, 0.0f);
    const float unit = op_.scale * kLog2E;
    const uint8_t* q = step_.row(op_.q, tile.token);
    for (int64_t head = 0; head < tile.count; ++head) {
      for (int64_t first = 0; first < side_.dim; first += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, side_.dim - first);
        const int64_t from = (tile.first + head) * side_.dim + first;
        float some[kLanes];
        gemm::store(some, load_some(q, op_.q.dtype, from, n) * unit);
        for (int64_t d = 0; d < n; ++d) query[(first + d) * kLanes + head] = some[d];
      }
    }
  }

  void add_group(const float* query, int64_t seen, Partial out) {
    F32x16 scores[kGroup];
    for (int64_t t = 0; t < seen; t += kKeys) {
      const int64_t count = std::min<int64_t>(kKeys, seen - t);
      F32x16 sums[kKeys] = {};
      for (int64_t d = 0; d < side_.dim; ++d) {
        const F32x16 q = load_f32(query + d * kLanes);
        for (int64_t i = 0; i < kKeys; ++i) {
          if (i < count) sums[i] = fma(splat(row(t + i)[d]), q, sums[i]);
        }
      }
      for (int64_t i = 0; i < count; ++i) scores[t + i] = sums[i];
    }
    F32x16 most = out.largest();
    for (int64_t t = 0; t < seen; ++t) most = maximum(most, scores[t]);
    const F32x16 kept = exp2_nonpositive(out.largest() - most);
    F32x16 sum = out.total() * kept;
    for (int64_t t = 0; t < seen; ++t) {
      scores[t] = exp2_nonpositive(scores[t] - most);
      sum = sum + scores[t];
    }
    out.set(most, sum);
    int64_t d = 0;
    for (; d + kValues <= op_.value_dim; d += kValues)
      add_values<kValues>(d, seen, scores, kept, out);
    for (; d < op_.value_dim; ++d) add_values<1>(d, seen, scores, kept, out);
  }

  // Numbers d .. d + n - 1 of the values.
  template <int n>
  QUIRE_INLINE void add_values(int64_t d, int64_t seen, const F32x16* scores, F32x16 kept,
                               Partial out) {
    F32x16 sums[n];
    for (int i = 0; i < n; ++i) sums[i] = load_f32(out.value(d + i)) * kept;
    for (int64_t t = 0; t < seen; ++t) {
      for (int i = 0; i < n; ++i) sums[i] = fma(scores[t], splat(row(t)[d + i]), sums[i]);
    }
    for (int i = 0; i < n; ++i) gemm::store(out.value(d + i), sums[i]);
  }

#if defined(__AVX512F__)
  static constexpr int kKeys = 8;  // whose scores are summed together
#else
  static constexpr int kKeys = 4;
#endif
  static constexpr int kValues = 4;  // numbers of the values that are summed together

  const Step& step_;
  const quire_latent& op_;
  const KvSide& side_;
  const Space space_;
  float* const memory_;
  const HeadTile* tiles_ = nullptr;
  int count_ = 0;
};

// The tokens that attend, all or those whose logits are wanted, with their heads. Neighbours in
// ascending order of requests and tokens.
std::vector<HeadTile> tiles_of(const Step& step, const quire_latent& op) {
  const quire_batch& batch = step.batch;
  std::vector<int32_t> tokens;
  if (op.taken_only && !step.takes_all()) {
    tokens.assign(batch.logits_rows, batch.logits_rows + batch.num_logits_rows);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  } else {
    for (int32_t token = 0; token < batch.seq_starts[batch.num_seqs]; ++token) {
      tokens.push_back(token);
    }
  }
  std::vector<HeadTile> tiles;
  int32_t seq = 0;
  for (const int32_t token : tokens) {
    while (token >= batch.seq_starts[seq + 1]) ++seq;
    for (int32_t first = 0; first < op.num_heads; first += kLanes) {
      tiles.push_back({token, seq, first, std::min<int32_t>(kLanes, op.num_heads - first)});
    }
  }
  return tiles;
}

struct Run {
  int32_t first;  // tile
  int32_t count;
};

std::vector<Run> runs_of(const std::vector<HeadTile>& tiles) {
  std::vector<Run> runs;
  for (int32_t i = 0; i < static_cast<int32_t>(tiles.size()); ++i) {
    const bool goes_on = !runs.empty() && runs.back().count < kTilesTogether &&
                         tiles[runs.back().first].seq == tiles[i].seq;
    if (goes_on) {
      ++runs.back().count;
    } else {
      runs.push_back({i, 1});
    }
  }
  return runs;
}

// The attention of a step. Where there are fewer runs than workers need, each segment of a run is a
// unit of its own. A result has the same bits either way, because segments are added in order.
class LatentWork {
 public:
  LatentWork(const Step& step, const quire_latent& op)
      : step_(step),
        op_(op),
        space_(layout_of(step, op).keys, op.value_dim),
        tiles_(tiles_of(step, op)),
        runs_(runs_of(tiles_)) {}

  void work() {
    Pool& pool = step_.model.pool;
    const auto units = static_cast<int64_t>(runs_.size());
    const int64_t wanted = 4 * int64_t{pool.size()};
    const int64_t together =
        kPartialFloats / (static_cast<int64_t>(tiles_.size()) * partial_floats() + 1) - 1;
    if (pool.size() > 1 && units < wanted && together > 1) return by_segments(together);
    pool.run(units, [&](Worker& worker) {
      TileRun run(step_, op_, memory_of(worker));
      for (int64_t unit; (unit = worker.grab_own(units)) < units;) {
        const Run& own = runs_[units - 1 - unit];  // the longest first
        run.load(&tiles_[own.first], own.count);
        run.work();
      }
    });
  }

  static int64_t scratch_floats(const Model& model, const quire_latent& op) {
    const Space space(model.kv.layouts[op.kv.layer_group].keys, op.value_dim);
    return kPartialFloats + model.pool.size() * space.floats;
  }

  float* memory_of(const Worker& worker) const {
    return scratch() + kPartialFloats + worker.index() * space_.floats;
  }

 private:
  int64_t partial_floats() const { return Partial::floats(op_.value_dim); }
  float* scratch() const { return reinterpret_cast<float*>(step_.model.linear_scratch->data()); }
  // The sum of a tile is before the results of its segments.
  Partial partial(int64_t tile, int64_t place, int64_t together) const {
    return {scratch() + (tile * (together + 1) + place) * partial_floats()};
  }
  int64_t num_segments(const Run& run) const {
    const int32_t token = tiles_[run.first + run.count - 1].token;
    return (step_.batch.positions[token] + kSegment) / kSegment;
  }

  // `together`: segments of every tile for whose results there is room.
  void by_segments(int64_t together) {
    int64_t most = 0;
    for (const Run& run : runs_) most = std::max(most, num_segments(run));
    for (int64_t begin = 0; begin < most; begin += together) {
      attend(begin, std::min(together, most - begin), together);
      add(begin, std::min(together, most - begin), together);
    }
  }

  void attend(int64_t begin, int64_t count, int64_t together) {
    const int64_t units = static_cast<int64_t>(runs_.size()) * count;
    step_.model.pool.run(units, [&](Worker& worker) {
      TileRun run(step_, op_, memory_of(worker));
      for (int64_t unit; (unit = worker.grab_own(units)) < units;) {
        const Run& own = runs_[unit / count];
        const int64_t place = unit % count;
        if (begin + place >= num_segments(own)) continue;
        Partial out[kTilesTogether];
        for (int i = 0; i < own.count; ++i) out[i] = partial(own.first + i, 1 + place, together);
        run.load(&tiles_[own.first], own.count);
        run.attend(begin + place, out);
      }
    });
  }

  void add(int64_t begin, int64_t count, int64_t together) {
    const auto units = static_cast<int64_t>(tiles_.size());
    step_.model.pool.run(units, [&](Worker& worker) {
      const TileRun run(step_, op_, memory_of(worker));
      for (int64_t unit; (unit = worker.grab_own(units)) < units;) {
        const int64_t own = num_segments({static_cast<int32_t>(unit), 1});
        const Partial sum = partial(unit, 0, together);
        for (int64_t segment = begin; segment < std::min(begin + count, own); ++segment) {
          const Partial one = partial(unit, 1 + segment - begin, together);
          add_segment(sum, one, segment == 0, op_.value_dim);
        }
        if (own > begin && own <= begin + count) run.store_result(tiles_[unit], sum);
      }
    });
  }

  const Step& step_;
  const quire_latent& op_;
  const Space space_;
  const std::vector<HeadTile> tiles_;
  const std::vector<Run> runs_;
};

void run_latent(const Step& step, const quire_latent& op, int32_t) {
  LatentWork attention(step, op);
  const auto runs = static_cast<int64_t>(step.runs.size());
  step.model.pool.run(runs, [&](Worker& worker) {
    for (int64_t run; (run = worker.grab_own(runs)) < runs;) {
      const TokenRun& tokens = step.runs[run];
      for (int32_t i = 0; i < tokens.count; ++i) {
        write_row(step, op, tokens.first + i, tokens.seq, attention.memory_of(worker));
      }
    }
  });
  attention.work();
}

void check_latent(const OpChecks& checks, const quire_latent& op) {
  checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "rows without positions");
  const KvLayout& layout = checks.model().kv.layouts[op.kv.layer_group];
  checks.require(layout.is_latent() && layout.keys.dim == op.k.dim, "cache of another size");
  checks.require(op.num_heads >= 1 && int64_t{op.k.dim} * op.num_heads == op.q.dim &&
                     op.value_dim >= 1 && op.value_dim <= op.k.dim &&
                     int64_t{op.value_dim} * op.num_heads == op.out.dim,
                 "dims differ");
}

void reserve_latent(const Model& model, const quire_latent& op, OpNeeds& needs) {
  needs.scratch_bytes =
      std::max<size_t>(needs.scratch_bytes, LatentWork::scratch_floats(model, op) * sizeof(float));
}

const OpRegistration kLatent(
    op_kind<quire_latent, check_latent, run_latent, look_at_out<quire_latent>, reserve_latent>());

}  // namespace
}  // namespace quire

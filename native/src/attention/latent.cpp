// Latent attention: all query heads read one row of numbers for each token, and the values are the
// first numbers of the same row.
//
// A lane of a vector is a query head, so nothing is summed across lanes: scores of a token are q's
// columns times its numbers, and the result's rows are the weights times its numbers. Tokens are
// taken in groups of 16 positions from 0 on; each group is widened to float32 once for its scores
// and its values. The maximum, the sum and the result are carried from group to group.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/op_checks.h"
#include "ops/op_kind.h"
#include "runtime/finite_watch.h"
#include "simd/vector.h"

namespace quire {
namespace {

constexpr float kLog2E = 1.44269504088896f;
constexpr float kSmallest = 1e-30f;  // below this a row counts as zeros

const KvLayout& layout_of(const Step& step, const quire_latent& op) {
  return step.model.kv.layouts[op.kv.layer_group];
}

// The group of 16 rows [16][padded_dim] that has `position`, then 16 scales where they are bytes.
uint8_t* group_of(const Step& step, const quire_latent& op, int32_t seq, int64_t position) {
  const int32_t* table = step.block_table(seq, op.kv.layer_group);
  return step.model.kv.key_group(op.kv, table, position, 0);
}

// Bytes: the largest number of a row becomes 127.
void write_bytes(const float* row, const KvSide& side, uint8_t* group, int64_t place) {
  float largest = 0.0f;
  bool is_finite = true;
  for (int64_t i = 0; i < side.dim; ++i) {
    is_finite = is_finite && std::isfinite(row[i]);
    largest = std::max(largest, std::fabs(row[i]));
  }
  const float inverse = is_finite && largest >= kSmallest ? 127.0f / largest : 0.0f;
  auto* bytes = reinterpret_cast<int8_t*>(group) + place * side.padded_dim;
  for (int64_t i = 0; i < side.dim; ++i) {
    const float known = inverse > 0.0f ? row[i] : 0.0f;
    bytes[i] = static_cast<int8_t>(std::nearbyint(known * inverse));
  }
  const float scale = is_finite ? largest / 127.0f : std::nanf("");
  std::memcpy(group + side.data_bytes + place * 4, &scale, 4);
}

void write_row(const Step& step, const quire_latent& op, int64_t token, int32_t seq,
               float* wide) {
  const KvSide& side = layout_of(step, op).keys;
  const int64_t position = step.batch.positions[token];
  uint8_t* group = group_of(step, op, seq, position);
  const int64_t place = position % kGroup;
  const uint8_t* k = step.row(op.k, token);
  if (side.dtype == QUIRE_INT8) {
    for (int64_t i = 0; i < side.dim; i += kLanes) {
      store_some(wide, QUIRE_F32, i, side.dim - i, load_some(k, op.k.dtype, i, side.dim - i));
    }
    return write_bytes(wide, side, group, place);
  }
  uint8_t* row = group + place * side.padded_dim * kv_item_bytes(side.dtype);
  for (int64_t i = 0; i < side.dim; i += kLanes) {
    store_some(row, side.dtype, i, side.dim - i, load_some(k, op.k.dtype, i, side.dim - i));
  }
}

// `count` rows of a group as float32 [16][padded_dim].
void widen(const KvSide& side, const uint8_t* group, int64_t count, float* out) {
  for (int64_t place = 0; place < count; ++place) {
    float* row = out + place * side.padded_dim;
    if (side.dtype == QUIRE_INT8) {
      const auto* bytes = reinterpret_cast<const int8_t*>(group) + place * side.padded_dim;
      float scale;
      std::memcpy(&scale, group + side.data_bytes + place * 4, 4);
      for (int64_t i = 0; i < side.dim; ++i) row[i] = static_cast<float>(bytes[i]) * scale;
      continue;
    }
    const uint8_t* from = group + place * side.padded_dim * kv_item_bytes(side.dtype);
    for (int64_t i = 0; i < side.dim; i += kLanes) {
      store_some(row, QUIRE_F32, i, side.dim - i, load_some(from, side.dtype, i, side.dim - i));
    }
  }
}

// Memory of a worker, in floats.
struct Space {
  Space(const KvSide& side, int64_t value_dim)
      : rows(0), queries(kGroup * side.padded_dim), result(queries + side.dim * kLanes),
        floats(result + value_dim * kLanes) {}
  int64_t rows;
  int64_t queries;  // [dim][16 heads]
  int64_t result;   // [value_dim][16 heads]
  int64_t floats;
};

// One token's heads first .. first + count - 1.
class HeadTile {
 public:
  HeadTile(const Step& step, const quire_latent& op, float* memory)
      : step_(step), op_(op), side_(layout_of(step, op).keys), space_(side_, op.value_dim),
        memory_(memory) {}

  void work(int64_t token, int32_t seq, int64_t first, int64_t count) {
    load_queries(token, first, count);
    std::fill_n(result(0), op_.value_dim * kLanes, 0.0f);
    F32x16 largest = splat(-INFINITY);
    F32x16 total = {};
    const int64_t length = step_.batch.positions[token] + 1;
    for (int64_t position = 0; position < length; position += kGroup) {
      const int64_t seen = std::min<int64_t>(kGroup, length - position);
      widen(side_, group_of(step_, op_, seq, position), seen, memory_ + space_.rows);
      add_group(seen, largest, total);
    }
    store_result(token, first, count, total);
  }

 private:
  float* query(int64_t d) const { return memory_ + space_.queries + d * kLanes; }
  float* result(int64_t d) const { return memory_ + space_.result + d * kLanes; }
  const float* row(int64_t place) const { return memory_ + space_.rows + place * side_.padded_dim; }

  // In units of log2, so that weights are powers of two.
  void load_queries(int64_t token, int64_t first, int64_t count) {
    std::fill_n(query(0), side_.dim * kLanes, 0.0f);
    const float unit = op_.scale * kLog2E;
    const uint8_t* q = step_.row(op_.q, token);
    for (int64_t head = 0; head < count; ++head) {
      for (int64_t i = 0; i < side_.dim; i += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, side_.dim - i);
        float some[kLanes];
        gemm::store(some, load_some(q, op_.q.dtype, (first + head) * side_.dim + i, n) * unit);
        for (int64_t d = 0; d < n; ++d) query(i + d)[head] = some[d];
      }
    }
  }

  void add_group(int64_t seen, F32x16& largest, F32x16& total) {
    F32x16 scores[kGroup];
    for (int64_t t = 0; t < seen; t += kTile) {
      const int64_t count = std::min<int64_t>(kTile, seen - t);
      F32x16 sums[kTile] = {};
      for (int64_t d = 0; d < side_.dim; ++d) {
        const F32x16 q = load_f32(query(d));
        for (int64_t i = 0; i < count; ++i) sums[i] = fma(splat(row(t + i)[d]), q, sums[i]);
      }
      for (int64_t i = 0; i < count; ++i) scores[t + i] = sums[i];
    }
    F32x16 most = largest;
    for (int64_t t = 0; t < seen; ++t) most = maximum(most, scores[t]);
    const F32x16 kept = exp2_nonpositive(largest - most);
    F32x16 sum = total * kept;
    for (int64_t t = 0; t < seen; ++t) {
      scores[t] = exp2_nonpositive(scores[t] - most);
      sum = sum + scores[t];
    }
    for (int64_t d = 0; d < op_.value_dim; ++d) {
      F32x16 value = load_f32(result(d)) * kept;
      for (int64_t t = 0; t < seen; ++t) value = fma(scores[t], splat(row(t)[d]), value);
      gemm::store(result(d), value);
    }
    largest = most;
    total = sum;
  }

  void store_result(int64_t token, int64_t first, int64_t count, F32x16 total) {
    uint8_t* out = step_.row(op_.out, token);
    const F32x16 share = 1.0f / total;
    for (int64_t d = 0; d < op_.value_dim; ++d) {
      gemm::store(result(d), load_f32(result(d)) * share);
    }
    for (int64_t head = 0; head < count; ++head) {
      for (int64_t i = 0; i < op_.value_dim; i += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, op_.value_dim - i);
        float some[kLanes] = {};
        for (int64_t d = 0; d < n; ++d) some[d] = result(i + d)[head];
        store_some(out, op_.out.dtype, (first + head) * op_.value_dim + i, n, load_f32(some));
      }
    }
  }

  static constexpr int kTile = 4;

  const Step& step_;
  const quire_latent& op_;
  const KvSide& side_;
  const Space space_;
  float* const memory_;
};

struct Query {
  int32_t token;
  int32_t seq;
};

// The tokens that attend: all, or those whose logits are wanted.
std::vector<Query> queries_of(const Step& step, const quire_latent& op) {
  std::vector<Query> all;
  for (int32_t seq = 0; seq < step.batch.num_seqs; ++seq) {
    for (int32_t t = step.batch.seq_starts[seq]; t < step.batch.seq_starts[seq + 1]; ++t) {
      all.push_back({t, seq});
    }
  }
  if (!op.taken_only || step.takes_all()) return all;
  std::vector<Query> taken;
  for (int32_t l = 0; l < step.batch.num_logits_rows; ++l) {
    taken.push_back(all[step.batch.logits_rows[l]]);
  }
  return taken;
}

float* memory_of(const Step& step, const Space& space, int worker) {
  return reinterpret_cast<float*>(step.model.linear_scratch->data()) + worker * space.floats;
}

void run_latent(const Step& step, const quire_op& record) {
  const quire_latent& op = record.u.latent;
  const Space space(layout_of(step, op).keys, op.value_dim);
  Pool& pool = step.model.pool;
  const auto runs = static_cast<int64_t>(step.runs.size());
  pool.run(runs, [&](Worker& worker) {
    for (int64_t run; (run = worker.grab_own(runs)) < runs;) {
      const TokenRun& tokens = step.runs[run];
      for (int32_t i = 0; i < tokens.count; ++i) {
        float* wide = memory_of(step, space, worker.index());
        write_row(step, op, tokens.first + i, tokens.seq, wide);
      }
    }
  });
  const std::vector<Query> queries = queries_of(step, op);
  const int64_t tiles = (op.num_heads + kLanes - 1) / kLanes;
  const int64_t units = static_cast<int64_t>(queries.size()) * tiles;
  pool.run(units, [&](Worker& worker) {
    HeadTile tile(step, op, memory_of(step, space, worker.index()));
    for (int64_t unit; (unit = worker.grab_own(units)) < units;) {
      const Query& query = queries[unit / tiles];
      const int64_t first = unit % tiles * kLanes;
      tile.work(query.token, query.seq, first, std::min<int64_t>(kLanes, op.num_heads - first));
    }
  });
}

void check_latent(const OpChecks& checks, const quire_op& record) {
  const quire_latent& op = record.u.latent;
  for (const quire_view* view : {&op.q, &op.k, &op.out}) checks.view(*view);
  checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "rows without positions");
  checks.kv_place(op.kv);
  const KvLayout& layout = checks.model().kv.layouts[op.kv.layer_group];
  checks.require(layout.is_latent() && layout.keys.dim == op.k.dim, "cache of another size");
  checks.require(op.num_heads >= 1 && int64_t{op.k.dim} * op.num_heads == op.q.dim &&
                     op.value_dim >= 1 && op.value_dim <= op.k.dim &&
                     int64_t{op.value_dim} * op.num_heads == op.out.dim,
                 "dims differ");
}

void reserve_latent(const Model& model, const quire_op& record, OpNeeds& needs) {
  const quire_latent& op = record.u.latent;
  const Space space(model.kv.layouts[op.kv.layer_group].keys, op.value_dim);
  needs.scratch_bytes =
      std::max<size_t>(needs.scratch_bytes, model.pool.size() * space.floats * sizeof(float));
}

void look_at_latent(FiniteWatch& watch, const quire_op& op) {
  watch.look_at_rows(op.u.latent.out, op.rows);
}

const OpRegistration kLatent({QUIRE_OP_LATENT, "latent", check_latent, run_latent, look_at_latent,
                              reserve_latent});

}  // namespace
}  // namespace quire

// What happens to q, k and v between their projection and attention: an optional norm per head, the
// rotation, and for k and v the way into the paged cache.
#include <algorithm>

#include "attention/hadamard.h"
#include "attention/kv_write.h"
#include "ops/head.h"
#include "ops/kernel.h"

namespace quire {
namespace {

// Heads that one worker handles at a time, at least; at most those of one run of tokens, which lie
// side by side.
constexpr int64_t kFewHeads = 4;

// One head of up to 16 tokens on its way to the cache. Rows are padded with zeros.
struct HeadTile {
  alignas(64) float rows[kGroup][kMaxHeadDim];
};

class HeadsOp {
 public:
  HeadsOp(const Step& step, const quire_heads& op) : step_(step), op_(op) {}

  // Head `head` of all parts' heads, one part after the other.
  void work(const TokenRun& run, int32_t head) {
    const quire_heads_part* part = op_.parts;
    for (; head >= part->num_heads; ++part) head -= part->num_heads;
    const bool whole = part->rotation < 0 || is_whole(step_.model.ropes[part->rotation]);
    if (whole && op_.head_dim == 8 * kLanes) {
      work_on<FixedHead<8>>(run, *part, head);
    } else if (whole && op_.head_dim == 4 * kLanes) {
      work_on<FixedHead<4>>(run, *part, head);
    } else {
      work_on<AnyHead>(run, *part, head);
    }
  }

 private:
  // Whether halves of the head are rotated against each other, and all of it.
  bool is_whole(const RopeTable& table) const {
    return !table.interleaved() && 2 * table.num_freqs() == op_.head_dim;
  }

  template <class Head>
  void work_on(const TokenRun& run, const quire_heads_part& part, int32_t head) {
    const int64_t first = int64_t{head} * op_.head_dim;
    for (int32_t i = 0; i < run.count; ++i) {
      const int64_t token = run.first + i;
      fetch_next(part, token, first);
      Head x(tile_.rows[i], op_.head_dim);
      if (const float* given = given_row(part, token)) {
        x.read(reinterpret_cast<const uint8_t*>(given), QUIRE_F32, first);
        x.keep(tile_.rows[i]);
        continue;
      }
      x.read(step_.row(part.x, token), part.x.dtype, first);
      if (part.norm_after == 0) norm(x, part, head);
      if (part.rotation >= 0) {
        rotate(x, step_.model.ropes[part.rotation], token);
      }
      if (part.norm_after != 0) norm(x, part, head);
      if (part.target == QUIRE_HEADS_TARGET_VIEW) {
        x.write(step_.row(part.out, token), part.out.dtype, first);
      } else {
        x.keep(tile_.rows[i]);
      }
    }
    if (part.target != QUIRE_HEADS_TARGET_VIEW) to_cache(run, part, head);
  }

  // The K or V of a token that the caller has given, or null.
  const float* given_row(const quire_heads_part& part, int64_t token) const {
    const float* const* given = step_.batch.given_kv;
    if (part.target == QUIRE_HEADS_TARGET_VIEW || !given || !given[token]) return nullptr;
    const int64_t place = int64_t{op_.kv.layer_group} * step_.model.kv.num_slots + op_.kv.slot;
    const float* keys = given[token] + step_.batch.given_kv_at[place];
    return part.target == QUIRE_HEADS_TARGET_KEYS ? keys : keys + part.x.dim;
  }

  // The next head is processed when all tokens of the run have passed: the hardware
  // prefetcher does not follow rows so far apart.
  void fetch_next(const quire_heads_part& part, int64_t token, int64_t first) const {
    const int64_t next = first + op_.head_dim;
    const auto fetch = [&](const quire_view& view, auto fetch_piece) {
      const int64_t size = view.dtype == QUIRE_F32 ? 4 : 2;
      fetch_piece(step_.row(view, token) + next * size, op_.head_dim * size);
    };
    fetch(part.x, fetch_lines);
    if (part.target == QUIRE_HEADS_TARGET_VIEW) fetch(part.out, fetch_lines_to_write);
  }

  template <class Head>
  QUIRE_INLINE void norm(Head& x, const quire_heads_part& part, int32_t head) const {
    if (part.norm < 0) return;
    const auto& weights = step_.model.vectors[part.norm];
    const bool shared = static_cast<int64_t>(weights.size()) == op_.head_dim;
    const float* weight = weights.data() + (shared ? 0 : int64_t{head} * op_.head_dim);
    if (part.norm_kind == QUIRE_NORM_KIND_RMS) {
      rms_norm(x, weight, part.eps);
    } else {
      layer_norm(x, weight, part.eps);
    }
  }

  void to_cache(const TokenRun& run, const quire_heads_part& part, int32_t head) {
    const KvCache& kv = step_.model.kv;
    const int32_t position = step_.batch.positions[run.first];
    const int32_t* table = step_.block_table(run.seq, op_.kv.layer_group);
    const KvLayout& layout = kv.layouts[op_.kv.layer_group];
    uint8_t* keys = kv.key_group(op_.kv, table, position, head);
    const bool is_keys = part.target == QUIRE_HEADS_TARGET_KEYS;
    const KvSide& side = is_keys ? layout.keys : layout.values;
    for (int32_t i = 0; side.dtype == QUIRE_INT4 && i < run.count; ++i) {
      std::fill(tile_.rows[i] + side.dim, tile_.rows[i] + side.padded_dim, 0.0f);
      rotate_head(tile_.rows[i], side.padded_dim);
    }
    if (is_keys) {
      write_keys(layout.keys, keys, position % kGroup, run.count, tile_.rows);
    } else {
      write_values(layout.values, kv.value_group(layout, keys, position), position % kGroup,
                   run.count, tile_.rows);
    }
  }

  const Step& step_;
  const quire_heads& op_;
  HeadTile tile_;
};

void check_part(const OpChecks& checks, const quire_heads& op, const quire_heads_part& part) {
  checks.view(part.x);
  checks.require(part.num_heads >= 1 && int64_t{part.num_heads} * op.head_dim == part.x.dim,
                 "x is not num_heads * head_dim wide");
  if (part.norm >= 0) {
    const auto& vectors = checks.model().vectors;
    checks.require(part.norm < static_cast<int32_t>(vectors.size()), "no such norm");
    const auto size = static_cast<int64_t>(vectors[part.norm].size());
    checks.require(size == op.head_dim || size == part.x.dim, "norm of another size");
    checks.require(part.norm_kind == QUIRE_NORM_KIND_RMS || part.norm_kind == QUIRE_NORM_KIND_LAYER,
                   "norm_kind");
  }
  if (part.rotation >= 0) {
    const std::vector<RopeTable>& ropes = checks.model().ropes;
    checks.require(part.rotation < static_cast<int32_t>(ropes.size()), "no such rope");
    checks.require(2 * ropes[part.rotation].num_freqs() <= op.head_dim, "rope too wide");
  }
  if (part.target == QUIRE_HEADS_TARGET_VIEW) {
    checks.view(part.out);
    checks.require(part.out.dim == part.x.dim, "dims differ");
  } else {
    const KvLayout& kv = checks.model().kv.layouts[op.kv.layer_group];
    checks.require(
        part.target == QUIRE_HEADS_TARGET_KEYS || part.target == QUIRE_HEADS_TARGET_VALUES,
        "target");
    const KvSide& side = part.target == QUIRE_HEADS_TARGET_KEYS ? kv.keys : kv.values;
    checks.require(part.num_heads == kv.num_kv_heads && op.head_dim == side.dim &&
                       checks.rows() == QUIRE_ROWS_TOKENS,
                   "not the cache's shape");
  }
}

void check_heads(const OpChecks& checks, const quire_heads& heads) {
  checks.require(heads.num_parts >= 1 && heads.num_parts <= 3, "not 1 to 3 parts");
  checks.require(heads.head_dim >= 1 && heads.head_dim <= kMaxHeadDim, "head_dim");
  for (int32_t p = 0; p < heads.num_parts; ++p) check_part(checks, heads, heads.parts[p]);
}

void run_heads(const Step& step, const quire_heads& op, int32_t) {
  int64_t heads_per_run = 0;
  for (int32_t p = 0; p < op.num_parts; ++p) heads_per_run += op.parts[p].num_heads;
  const int64_t num_heads = heads_per_run * static_cast<int64_t>(step.runs.size());
  Pool& pool = step.model.pool;
  const int64_t grain =
      std::clamp(num_heads / (8 * pool.size()), std::min(kFewHeads, heads_per_run), heads_per_run);
  pool.spans(num_heads, grain, [&](Span span) {
    HeadsOp work(step, op);
    for (int64_t i = span.first; i < span.last; ++i) {
      work.work(step.runs[i / heads_per_run], static_cast<int32_t>(i % heads_per_run));
    }
  });
}

// Not at what it writes to the cache: attention is looked at, which reads it.
void look_at_heads(FiniteWatch& watch, const quire_heads& op, int32_t rows) {
  for (int32_t p = 0; p < op.num_parts; ++p) {
    const quire_heads_part& part = op.parts[p];
    if (part.target == QUIRE_HEADS_TARGET_VIEW) watch.look_at_rows(part.out, rows);
  }
}

const OpRegistration kHeads(op_kind<quire_heads, check_heads, run_heads, look_at_heads>());

}  // namespace
}  // namespace quire

// What happens to q, k and v between their projection and attention: an optional norm per head, the
// rotation, and for k and v the way into the paged cache.
#include <algorithm>
#include <cmath>

#include "attention/kv_write.h"
#include "ops/ops.h"
#include "simd/vector.h"

namespace quire {
namespace {

// Heads that one worker handles at a time, at least; at most those of one run of tokens, which lie
// side by side.
constexpr int64_t kFewHeads = 4;

// One head of up to 16 tokens, in float32 while it is worked on. Rows are padded with zeros.
struct HeadTile {
  alignas(64) float rows[kGroup][kMaxHeadDim];
};

void rms_norm(float* x, int64_t dim, const float* weight, float eps) {
  F32x16 squares = {};
  for (int64_t i = 0; i < dim; i += kLanes) {
    const F32x16 v = load_f32(x + i);
    squares = fma(v, v, squares);
  }
  const float scale = 1.0f / std::sqrt(sum_lanes(squares) / dim + eps);
  for (int64_t i = 0; i < dim; i += kLanes) {
    gemm::store(x + i, load_f32(x + i) * scale * load_some(weight, QUIRE_F32, i, dim - i));
  }
}

void rotate_halves(float* x, const float* cos, const float* sin, int64_t num_freqs) {
  for (int64_t i = 0; i < num_freqs; i += kLanes) {
    const int64_t n = num_freqs - i;
    const F32x16 a = load_some(x, QUIRE_F32, i, n);
    const F32x16 b = load_some(x, QUIRE_F32, num_freqs + i, n);
    const F32x16 c = load_some(cos, QUIRE_F32, i, n);
    const F32x16 s = load_some(sin, QUIRE_F32, i, n);
    store_some(x, QUIRE_F32, i, n, a * c - b * s);
    store_some(x, QUIRE_F32, num_freqs + i, n, b * c + a * s);
  }
}

void rotate_pairs(float* x, const float* cos, const float* sin, int64_t num_freqs) {
  for (int64_t i = 0; i < num_freqs; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

// A head of N whole vectors, in registers from its row to where it goes: the same operations as
// above, in the same order.
template <int N>
struct HeadInRegisters {
  F32x16 v[N];

  QUIRE_INLINE void load(const uint8_t* row, int32_t dtype, int64_t first) {
    for (int i = 0; i < N; ++i) v[i] = load_some(row, dtype, first + i * kLanes, kLanes);
  }
  QUIRE_INLINE void rms_norm(const float* weight, float eps) {
    F32x16 squares = {};
    for (int i = 0; i < N; ++i) squares = fma(v[i], v[i], squares);
    const float scale = 1.0f / std::sqrt(sum_lanes(squares) / (N * kLanes) + eps);
    for (int i = 0; i < N; ++i) v[i] = v[i] * scale * load_f32(weight + i * kLanes);
  }
  QUIRE_INLINE void rotate_halves(const float* cos, const float* sin) {
    for (int i = 0; i < N / 2; ++i) {
      const F32x16 a = v[i], b = v[i + N / 2];
      const F32x16 c = load_f32(cos + i * kLanes), s = load_f32(sin + i * kLanes);
      v[i] = a * c - b * s;
      v[i + N / 2] = b * c + a * s;
    }
  }
  QUIRE_INLINE void store(void* row, int32_t dtype, int64_t first) const {
    for (int i = 0; i < N; ++i) store_some(row, dtype, first + i * kLanes, kLanes, v[i]);
  }
};

class HeadsOp {
 public:
  HeadsOp(const Step& step, const quire_heads& op) : step_(step), op_(op) {}

  // Head `head` of all parts' heads, one part after the other.
  void work(const TokenRun& run, int32_t head) {
    const quire_heads_part* part = op_.parts;
    for (; head >= part->num_heads; ++part) head -= part->num_heads;
    work(run, *part, head);
  }

 private:
  void work(const TokenRun& run, const quire_heads_part& part, int32_t head) {
    const bool whole = part.rope < 0 || is_whole(step_.model.ropes[part.rope]);
    if (whole && op_.head_dim == 8 * kLanes) {
      work_in_registers<8>(run, part, head);
    } else if (whole && op_.head_dim == 4 * kLanes) {
      work_in_registers<4>(run, part, head);
    } else {
      work_in_memory(run, part, head);
    }
  }

  // Whether halves of the head are rotated against each other, and all of it.
  bool is_whole(const RopeTable& table) const {
    return !table.interleaved() && 2 * table.num_freqs() == op_.head_dim;
  }

  template <int N>
  void work_in_registers(const TokenRun& run, const quire_heads_part& part, int32_t head) {
    const int64_t first = int64_t{head} * op_.head_dim;
    for (int32_t i = 0; i < run.count; ++i) {
      const int64_t token = run.first + i;
      HeadInRegisters<N> x;
      x.load(step_.row(part.x, token), part.x.dtype, first);
      if (part.norm >= 0) x.rms_norm(step_.vector(part.norm), part.eps);
      if (part.rope >= 0) {
        const RopeTable& table = step_.model.ropes[part.rope];
        const int32_t position = step_.batch.positions[token];
        x.rotate_halves(table.cos(position), table.sin(position));
      }
      if (part.target == QUIRE_TO_VIEW) {
        x.store(step_.row(part.out, token), part.out.dtype, first);
      } else {
        x.store(tile_.rows[i], QUIRE_F32, 0);
      }
    }
    if (part.target != QUIRE_TO_VIEW) to_cache(run, part, head);
  }

  void work_in_memory(const TokenRun& run, const quire_heads_part& part, int32_t head) {
    const int64_t first = int64_t{head} * op_.head_dim;
    for (int32_t i = 0; i < run.count; ++i) {
      float* x = tile_.rows[i];
      load(step_.row(part.x, run.first + i), part.x.dtype, first, x);
      if (part.norm >= 0) rms_norm(x, op_.head_dim, step_.vector(part.norm), part.eps);
      if (part.rope >= 0) rotate(step_.model.ropes[part.rope], run.first + i, x);
    }
    if (part.target == QUIRE_TO_VIEW) {
      to_view(run, part, first);
    } else {
      to_cache(run, part, head);
    }
  }

  void load(const uint8_t* row, int32_t dtype, int64_t first, float* x) {
    const int64_t dim = op_.head_dim;
    for (int64_t i = 0; i < dim; i += kLanes) {
      gemm::store(x + i, load_some(row, dtype, first + i, std::min<int64_t>(dim - i, kLanes)));
    }
    for (int64_t i = round_up(dim, kLanes); i < static_cast<int64_t>(round_up(dim, kHeadAlign));
         i += kLanes) {
      gemm::store(x + i, F32x16{});
    }
  }

  void rotate(const RopeTable& table, int64_t token, float* x) {
    const int32_t position = step_.batch.positions[token];
    auto* turn = table.interleaved() ? rotate_pairs : rotate_halves;
    turn(x, table.cos(position), table.sin(position), table.num_freqs());
  }

  void to_view(const TokenRun& run, const quire_heads_part& part, int64_t first) {
    for (int32_t i = 0; i < run.count; ++i) {
      uint8_t* out = step_.row(part.out, run.first + i);
      for (int64_t c = 0; c < op_.head_dim; c += kLanes) {
        store_some(out, part.out.dtype, first + c, op_.head_dim - c, load_f32(tile_.rows[i] + c));
      }
    }
  }

  void to_cache(const TokenRun& run, const quire_heads_part& part, int32_t head) {
    const KvCache& kv = step_.model.kv;
    const int32_t position = step_.batch.positions[run.first];
    const int32_t* table = step_.block_table(run.seq, op_.kv.layer_group);
    uint8_t* keys = kv.key_group(table, position, op_.kv.slot, head);
    if (part.target == QUIRE_TO_KEYS) {
      write_keys(kv.layout, keys, position % kGroup, run.count, tile_.rows);
    } else {
      write_values(kv.layout, keys + kv.layout.half_bytes, position % kGroup, run.count,
                   tile_.rows);
    }
  }

  const Step& step_;
  const quire_heads& op_;
  HeadTile tile_;
};

}  // namespace

void heads(const Step& step, const quire_heads& op) {
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

}  // namespace quire

// One head of a linear recurrence in the form of anchored chunks: the gated delta rule and Mamba 2.
//
// program/recurrent_ops.py has the formulas (`GatedDelta`). A row's sums run over the state's rows
// and then over the chunk's rows before it, in this order, whether the rows of a chunk come in one
// step or in several. The state is read once for all rows of a chunk that a step has, and written
// when the chunk is whole.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "recurrent/state.h"
#include "simd/vector.h"

namespace quire {

// log(1 + exp(x)) without overflow.
inline float softplus_of(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x)));
}

inline void load_row(const Step& step, const quire_view& view, int64_t row, int64_t first,
                     int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32x16 v = load_some(step.row(view, row), view.dtype, first + i, count - i);
    store_some(out, QUIRE_F32, i, count - i, v);
  }
}

inline float dot(const float* a, const float* b, int64_t count) {
  F32x16 sum = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    sum = fma(load_some(a, QUIRE_F32, i, n), load_some(b, QUIRE_F32, i, n), sum);
  }
  return sum_lanes(sum);
}

// out += factor * row
QUIRE_INLINE void add_scaled(float* out, float factor, const float* row, int64_t count) {
  const F32x16 splatted = splat(factor);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = count - i;
    const F32x16 sum =
        fma(splatted, load_some(row, QUIRE_F32, i, n), load_some(out, QUIRE_F32, i, n));
    store_some(out, QUIRE_F32, i, n, sum);
  }
}

struct ChunkShape {
  int64_t key_dim;
  int64_t value_dim;
  int64_t decay_dim;  // 1 or key_dim
  bool is_delta;      // u = beta (v - what the state knows), otherwise u = v

  int64_t piece_floats() const {
    return key_dim * value_dim + kStateChunk * (key_dim + value_dim + decay_dim);
  }
  // Memory of a worker: rows that are multiplied with the state, and their products.
  int64_t scratch_floats() const {
    return kStateChunk * (4 * key_dim + 4 * value_dim + decay_dim) + 4 * kLanes;
  }
};

// What a row brings. The caller fills it: q, k [key_dim], v [value_dim], g [decay_dim].
struct ChunkRow {
  float* q;
  float* k;
  float* v;
  float* g;
  float beta;
};

class ChunkedHead {
 public:
  ChunkedHead(const ChunkShape& shape, float* piece, float* scratch)
      : shape_(shape),
        state_(piece),
        keys_(state_ + shape.key_dim * shape.value_dim),
        updates_(keys_ + kStateChunk * shape.key_dim),
        decays_(updates_ + kStateChunk * shape.value_dim),
        factors_(scratch),
        products_(factors_ + 2 * kStateChunk * shape.key_dim),
        queries_(products_ + 2 * kStateChunk * shape.value_dim),
        values_(queries_ + kStateChunk * shape.key_dim) {}

  // load(row in the step, ChunkRow&) fills a row; store(row, out [value_dim]) takes its result.
  template <class Load, class Store>
  void work(const RequestRows& rows, Load load, Store store) {
    for (int64_t done = 0; done < rows.count;) {
      const int64_t place = (rows.position + done) % kStateChunk;
      const int64_t count = std::min<int64_t>(kStateChunk - place, rows.count - done);
      num_rows_ = count;
      for (int64_t i = 0; i < count; ++i) enter(rows.row + done + i, place + i, i, load);
      read_state(place);
      for (int64_t i = 0; i < count; ++i) {
        finish(place + i, i);
        store(rows.row + done + i, product(i));
      }
      if (place + count == kStateChunk) advance();
      done += count;
    }
  }

 private:
  float* key(int64_t place) const { return keys_ + place * shape_.key_dim; }
  float* update(int64_t place) const { return updates_ + place * shape_.value_dim; }
  float* decay(int64_t place) const { return decays_ + place * shape_.decay_dim; }
  float* query(int64_t i) const { return queries_ + i * shape_.key_dim; }
  float* value(int64_t i) const { return values_ + i * shape_.value_dim; }
  // What is multiplied with the state: exp(G) q of the step's rows, then exp(G) k; and the products.
  float* factor(int64_t i) const { return factors_ + i * shape_.key_dim; }
  float* product(int64_t i) const { return products_ + i * shape_.value_dim; }
  float* known(int64_t i) const { return product(num_rows_ + i); }

  template <class Load>
  void enter(int64_t row, int64_t place, int64_t i, Load load) {
    ChunkRow in{query(i), key(place), value(i), decay(place), 0.0f};
    load(row, in);
    betas_[i] = in.beta;
    for (int64_t d = 0; d < shape_.decay_dim; ++d) {
      if (place > 0) in.g[d] += decay(place - 1)[d];
    }
  }

  // Multiplies the step's rows with the state. `first`: the place of the first one.
  void read_state(int64_t first) {
    for (int64_t i = 0; i < num_rows_; ++i) {
      const float* g = decay(first + i);
      scale_by_decay(query(i), g, factor(i));
      if (shape_.is_delta) scale_by_decay(key(first + i), g, factor(num_rows_ + i));
    }
    const int64_t count = shape_.is_delta ? 2 * num_rows_ : num_rows_;
    for (int64_t r = 0; r < count; r += kTile) {
      multiply(r, std::min<int64_t>(kTile, count - r));
    }
  }

  void scale_by_decay(const float* x, const float* g, float* out) const {
    const float all = std::exp(g[0]);
    for (int64_t d = 0; d < shape_.key_dim; ++d) {
      out[d] = x[d] * (shape_.decay_dim == 1 ? all : std::exp(g[d]));
    }
  }

  // Rows r .. r + count - 1 of the factors times the state, 16 columns at a time.
  void multiply(int64_t r, int64_t count) {
    for (int64_t j = 0; j < shape_.value_dim; j += kLanes) {
      const int64_t n = shape_.value_dim - j;
      F32x16 sums[kTile] = {};
      for (int64_t d = 0; d < shape_.key_dim; ++d) {
        const F32x16 s = load_some(state_ + d * shape_.value_dim, QUIRE_F32, j, n);
        for (int64_t i = 0; i < count; ++i) sums[i] = fma(splat(factor(r + i)[d]), s, sums[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        store_some(product(r + i), QUIRE_F32, j, n, sums[i]);
      }
    }
  }

  // exp(G_t - G_s) k_s . x
  float score(int64_t s, int64_t t, const float* x) const {
    if (shape_.decay_dim == 1) {
      return std::exp(*decay(t) - *decay(s)) * dot(key(s), x, shape_.key_dim);
    }
    float sum = 0.0f;
    for (int64_t d = 0; d < shape_.key_dim; ++d) {
      sum += std::exp(decay(t)[d] - decay(s)[d]) * key(s)[d] * x[d];
    }
    return sum;
  }

  void finish(int64_t place, int64_t i) {
    if (shape_.is_delta) {
      for (int64_t s = 0; s < place; ++s) {
        add_scaled(known(i), score(s, place, key(place)), update(s), shape_.value_dim);
      }
      for (int64_t d = 0; d < shape_.value_dim; ++d) {
        update(place)[d] = betas_[i] * (value(i)[d] - known(i)[d]);
      }
    } else {
      std::copy_n(value(i), shape_.value_dim, update(place));
    }
    for (int64_t s = 0; s <= place; ++s) {
      add_scaled(product(i), score(s, place, query(i)), update(s), shape_.value_dim);
    }
  }

  // The chunk is whole: the state after its last row.
  void advance() {
    const float* last = decay(kStateChunk - 1);
    for (int64_t d = 0; d < shape_.key_dim; ++d) {
      const int64_t g = shape_.decay_dim == 1 ? 0 : d;
      float weights[kStateChunk];
      for (int64_t s = 0; s < kStateChunk; ++s) {
        weights[s] = std::exp(last[g] - decay(s)[g]) * key(s)[d];
      }
      const F32x16 kept = splat(std::exp(last[g]));
      float* row = state_ + d * shape_.value_dim;
      for (int64_t j = 0; j < shape_.value_dim; j += kLanes) {
        const int64_t n = shape_.value_dim - j;
        F32x16 sum = kept * load_some(row, QUIRE_F32, j, n);
        for (int64_t s = 0; s < kStateChunk; ++s) {
          sum = fma(splat(weights[s]), load_some(update(s), QUIRE_F32, j, n), sum);
        }
        store_some(row, QUIRE_F32, j, n, sum);
      }
    }
  }

  static constexpr int kTile = 4;

  const ChunkShape shape_;
  float* const state_;
  float* const keys_;
  float* const updates_;
  float* const decays_;
  float* const factors_;
  float* const products_;
  float* const queries_;
  float* const values_;
  float betas_[kStateChunk] = {};
  int64_t num_rows_ = 0;  // of the step in this chunk
};

}  // namespace quire

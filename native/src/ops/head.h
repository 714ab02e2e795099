// One head of one token while its norm and rotation are computed, in float32.
//
// Two classes hold the numbers, in registers or in memory, and the arithmetic is written once over
// both. They offer
//   dim()              numbers of the head
//   get(i, n)          numbers i .. i + n - 1, n <= 16; the lanes above are anything
//   set(i, n, v)       the same, written; as many as there are
//   read(row, ...)     all of them from a value's row, from element `first` on
//   write(row, ...)    all of them to such a row
//   keep(row)          all of them to `row`, float32 and padded with zeros
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/rope_table.h"
#include "runtime/kv_cache.h"
#include "simd/vector.h"

namespace quire {

// A head of N whole vectors.
template <int N>
class HeadInRegisters {
 public:
  HeadInRegisters(float*, int64_t) {}

  static constexpr int64_t dim() { return N * kLanes; }
  QUIRE_INLINE F32x16 get(int64_t i, int64_t) const { return v_[i / kLanes]; }
  QUIRE_INLINE void set(int64_t i, int64_t, F32x16 v) { v_[i / kLanes] = v; }
  QUIRE_INLINE void read(const uint8_t* row, int32_t dtype, int64_t first) {
    for (int i = 0; i < N; ++i) v_[i] = load_some(row, dtype, first + i * kLanes, kLanes);
  }
  QUIRE_INLINE void write(void* row, int32_t dtype, int64_t first) const {
    for (int i = 0; i < N; ++i) store_some(row, dtype, first + i * kLanes, kLanes, v_[i]);
  }
  QUIRE_INLINE void keep(float* row) const { write(row, QUIRE_F32, 0); }

 private:
  F32x16 v_[N];
};

// A head of any size, in the row that it is kept in.
class HeadInMemory {
 public:
  HeadInMemory(float* row, int64_t dim) : x_(row), dim_(dim) {}

  int64_t dim() const { return dim_; }
  QUIRE_INLINE F32x16 get(int64_t i, int64_t n) const { return load_some(x_, QUIRE_F32, i, n); }
  QUIRE_INLINE void set(int64_t i, int64_t n, F32x16 v) { store_some(x_, QUIRE_F32, i, n, v); }
  void read(const uint8_t* row, int32_t dtype, int64_t first) {
    for (int64_t i = 0; i < dim_; i += kLanes) {
      const int64_t n = std::min<int64_t>(dim_ - i, kLanes);
      gemm::store(x_ + i, load_some(row, dtype, first + i, n));
    }
    const auto padded = static_cast<int64_t>(round_up(dim_, kHeadAlign));
    for (int64_t i = round_up(dim_, kLanes); i < padded; i += kLanes) {
      gemm::store(x_ + i, F32x16{});
    }
  }
  void write(void* row, int32_t dtype, int64_t first) const {
    for (int64_t i = 0; i < dim_; i += kLanes) {
      store_some(row, dtype, first + i, dim_ - i, load_f32(x_ + i));
    }
  }
  void keep(float*) const {}  // it is there

  float* data() { return x_; }

 private:
  float* const x_;
  const int64_t dim_;
};

// x / sqrt(mean(x^2) + eps) * weight. Padding within the last vector stays 0.
template <class Head>
QUIRE_INLINE void rms_norm(Head& x, const float* weight, float eps) {
  F32x16 squares = {};
  for (int64_t i = 0; i < x.dim(); i += kLanes) {
    const F32x16 v = x.get(i, kLanes);
    squares = fma(v, v, squares);
  }
  const float scale = 1.0f / std::sqrt(sum_lanes(squares) / x.dim() + eps);
  for (int64_t i = 0; i < x.dim(); i += kLanes) {
    const F32x16 w = load_some(weight, QUIRE_F32, i, x.dim() - i);
    x.set(i, kLanes, x.get(i, kLanes) * scale * w);
  }
}

// Turns number i against number i + num_freqs, for all i < num_freqs.
template <class Head>
QUIRE_INLINE void rotate_halves(Head& x, const float* cos, const float* sin, int64_t num_freqs) {
  for (int64_t i = 0; i < num_freqs; i += kLanes) {
    const int64_t n = num_freqs - i;
    const F32x16 a = x.get(i, n);
    const F32x16 b = x.get(num_freqs + i, n);
    const F32x16 c = load_some(cos, QUIRE_F32, i, n);
    const F32x16 s = load_some(sin, QUIRE_F32, i, n);
    x.set(i, n, a * c - b * s);
    x.set(num_freqs + i, n, b * c + a * s);
  }
}

// Turns number 2 i against number 2 i + 1.
inline void rotate_pairs(float* x, const float* cos, const float* sin, int64_t num_freqs) {
  for (int64_t i = 0; i < num_freqs; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

// Rotates by a row of cos and sin. In registers, halves of all of the head.
template <int N>
QUIRE_INLINE void rotate(HeadInRegisters<N>& x, const RopeTable& table, int32_t position) {
  rotate_halves(x, table.cos(position), table.sin(position), x.dim() / 2);
}
inline void rotate(HeadInMemory& x, const RopeTable& table, int32_t position) {
  const float* cos = table.cos(position);
  const float* sin = table.sin(position);
  if (table.interleaved()) {
    rotate_pairs(x.data(), cos, sin, table.num_freqs());
  } else {
    rotate_halves(x, cos, sin, table.num_freqs());
  }
}

}  // namespace quire

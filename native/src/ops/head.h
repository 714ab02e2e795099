// One head of one token while its norm and rotation are computed, in float32.
//
// Two classes have the numbers, for sizes known to the compiler and for any, and the arithmetic is
// written once over both. They offer
//   dim()              numbers of the head
//   load(row, i, n)    elements i .. i + n - 1 of a float32 row, n <= 16
//   get(i, n)          numbers i .. i + n - 1 of the head, likewise
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

// A head of N whole vectors: n is always 16. All loops are unrolled, and gcc keeps the array in
// registers where there are enough. (An array of vectors of two registers each it would copy in
// pieces, and wait for these.)
template <int N>
class FixedHead {
 public:
  FixedHead(float*, int64_t) {}

  static constexpr int64_t dim() { return N * kLanes; }
  QUIRE_INLINE static F32x16 load(const float* row, int64_t i, int64_t) {
    return load_f32(row + i);
  }
  QUIRE_INLINE F32x16 get(int64_t i, int64_t) const { return load_f32(x_ + i); }
  QUIRE_INLINE void set(int64_t i, int64_t, F32x16 v) { gemm::store(x_ + i, v); }
  QUIRE_INLINE void read(const uint8_t* row, int32_t dtype, int64_t first) {
    for (int64_t i = 0; i < dim(); i += kLanes) {
      set(i, kLanes, load_some(row, dtype, first + i, kLanes));
    }
  }
  QUIRE_INLINE void write(void* row, int32_t dtype, int64_t first) const {
    for (int64_t i = 0; i < dim(); i += kLanes) {
      store_some(row, dtype, first + i, kLanes, get(i, kLanes));
    }
  }
  QUIRE_INLINE void keep(float* row) const { write(row, QUIRE_F32, 0); }

 private:
  alignas(64) float x_[N * kLanes];
};

// A head of any size, in the row that `keep` names.
class AnyHead {
 public:
  AnyHead(float* row, int64_t dim) : x_(row), dim_(dim) {}

  int64_t dim() const { return dim_; }
  QUIRE_INLINE static F32x16 load(const float* row, int64_t i, int64_t n) {
    return load_some(row, QUIRE_F32, i, n);
  }
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
    const F32x16 w = x.load(weight, i, x.dim() - i);
    x.set(i, kLanes, x.get(i, kLanes) * scale * w);
  }
}

// (x - mean(x)) / sqrt(var(x) + eps) * weight. Padding within the last vector stays 0.
template <class Head>
QUIRE_INLINE void layer_norm(Head& x, const float* weight, float eps) {
  F32x16 sum = {};
  for (int64_t i = 0; i < x.dim(); i += kLanes) sum = sum + x.get(i, kLanes);
  const float mean = sum_lanes(sum) / x.dim();
  F32x16 squares = {};
  for (int64_t i = 0; i < x.dim(); i += kLanes) {
    const F32x16 v = gemm::first_lanes(x.get(i, kLanes) - mean, x.dim() - i, 0.0f);
    squares = fma(v, v, squares);
  }
  const float scale = 1.0f / std::sqrt(sum_lanes(squares) / x.dim() + eps);
  for (int64_t i = 0; i < x.dim(); i += kLanes) {
    const F32x16 w = x.load(weight, i, x.dim() - i);
    x.set(i, kLanes, (x.get(i, kLanes) - mean) * scale * w);
  }
}

// Turns number i against number i + num_freqs, for all i < num_freqs.
template <class Head>
QUIRE_INLINE void rotate_halves(Head& x, const float* cos, const float* sin, int64_t num_freqs) {
  for (int64_t i = 0; i < num_freqs; i += kLanes) {
    const int64_t n = num_freqs - i;
    const F32x16 a = x.get(i, n);
    const F32x16 b = x.get(num_freqs + i, n);
    const F32x16 c = x.load(cos, i, n);
    const F32x16 s = x.load(sin, i, n);
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

// Rotates by a row of cos and sin. A fixed head: halves, and all of it.
template <int N>
QUIRE_INLINE void rotate(FixedHead<N>& x, const RopeTable& table, int64_t token) {
  rotate_halves(x, table.cos(token), table.sin(token), x.dim() / 2);
}
inline void rotate(AnyHead& x, const RopeTable& table, int64_t token) {
  const float* cos = table.cos(token);
  const float* sin = table.sin(token);
  if (table.interleaved()) {
    rotate_pairs(x.data(), cos, sin, table.num_freqs());
  } else {
    rotate_halves(x, cos, sin, table.num_freqs());
  }
}

}  // namespace quire

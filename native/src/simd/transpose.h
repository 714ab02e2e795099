// Columns of 32-bit words out of rows: how rows of x come to lie side by side in a packed tile,
// rows of a weight in a strip, and tokens in a group of keys.
#pragma once

#include <cstdint>
#include <utility>

#include "simd/lanes.h"

namespace quire::gemm {

template <int N>
struct Words {
  typedef uint32_t Type __attribute__((vector_size(N * 4)));
};

// a0 b0 a1 b1 ... of the lower (kHalf 0) or the upper halves of a and b.
template <int kHalf, class V, int... I>
QUIRE_INLINE V zip(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int N = sizeof...(I);
  return __builtin_shufflevector(a, b, (kHalf * N / 2 + I / 2 + I % 2 * N)...);
}

// Transposes an N x N tile: rows `row_words` apart in, columns `column_words` apart out. Each round
// moves the top bit of the row number to the bottom of the column number and the top bit of the
// column number to the bottom of the row number; after log2 N of them the two have changed places.
template <int N>
QUIRE_INLINE void transpose_tile(const uint32_t* in, int64_t row_words, uint32_t* out,
                                 int64_t column_words) {
  using V = typename Words<N>::Type;
  using Lanes = std::make_integer_sequence<int, N>;
  V v[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) v[i] = load<V>(in + i * row_words);
#pragma GCC unroll 4
  for (int round = 1; round < N; round *= 2) {
    V zipped[N];
#pragma GCC unroll 8
    for (int i = 0; i < N / 2; ++i) {
      zipped[2 * i] = zip<0>(v[i], v[i + N / 2], Lanes{});
      zipped[2 * i + 1] = zip<1>(v[i], v[i + N / 2], Lanes{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) v[i] = zipped[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) store(out + i * column_words, v[i]);
}

// in[t][column] to out[column][t] for 16 tokens; `columns` is a multiple of 4. `column_words` is
// the distance between columns.
inline void transpose_group(const uint32_t* in, int64_t row_words, int64_t columns, uint32_t* out,
                            int64_t column_words = 16) {
  constexpr int kTokens = 16;
  const auto tiles = [&](auto size) {
    constexpr int N = decltype(size)::value;
    for (int64_t c = 0; c < columns; c += N) {
      for (int t = 0; t < kTokens; t += N) {
        transpose_tile<N>(in + t * row_words + c, row_words, out + c * column_words + t,
                          column_words);
      }
    }
  };
  constexpr int kLargest = kPartLanes;
  if (columns % kLargest == 0) {
    tiles(std::integral_constant<int, kLargest>{});
  } else {
    tiles(std::integral_constant<int, 4>{});
  }
}

// `count` words of each of `rows` rows, `row_words` apart, to out[word][row]. There is memory to
// read for kPartLanes rows, and no fewer are worth a transposition than a quarter of that.
inline void interleave(const uint32_t* in, int64_t row_words, int64_t rows, int64_t count,
                       uint32_t* out) {
  constexpr int N = kPartLanes;
  if (rows == 1) {
    std::memcpy(out, in, count * sizeof *in);
    return;
  }
  int64_t word = 0;
  if (rows > N / 4) {
    // A tile also writes after its last row; the rows of the next word overwrite this.
    for (; word + N < count; word += N) {
      transpose_tile<N>(in + word, row_words, out + word * rows, rows);
    }
    if (word + N == count) {
      uint32_t last[N * N];
      transpose_tile<N>(in + word, row_words, last, rows);
      std::memcpy(out + word * rows, last, N * rows * sizeof *out);
      return;
    }
  }
  for (; word < count; ++word) {
    for (int64_t r = 0; r < rows; ++r) out[word * rows + r] = in[r * row_words + word];
  }
}

}  // namespace quire::gemm

// Rows of a weight as its checkpoint holds them, read as float32 or bfloat16.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace quire::gemm {

// Of a dtype of numbers, or blocks, which are not transposed.
struct Source {
  const void* data;
  DType dtype;
  bool transposed;
  int64_t rows;  // of the whole source
  int64_t k;

  int64_t index(int64_t row, int64_t column) const {
    return transposed ? column * rows + row : row * k + column;
  }
};

// Elements `first .. first + count - 1` of one row of the source, converted, zeros after the end.
void read_row(const Source& source, int64_t row, int64_t first, int64_t count, float* out);
void read_row(const Source& source, int64_t row, int64_t first, int64_t count, uint16_t* out);

// Those of a source of float16 as they are.
struct Float16 {
  uint16_t bits;
};
void read_row(const Source& source, int64_t row, int64_t first, int64_t count, Float16* out);

// Whether numbers are finite: float32, bfloat16, and float16.
bool all_finite(const float* values, int64_t count);
bool all_finite(const uint16_t* values, int64_t count);
bool all_finite(const Float16* values, int64_t count);

// How a row of weights becomes integers from -limit to limit: number * inverse, rounded. A NaN or
// an infinity anywhere in the row makes the scale NaN and the inverse 0, as a row of zeros does.
struct WeightScale {
  float scale;
  float inverse;

  bool is_finite() const { return scale == scale; }
};

WeightScale weight_scale(const Source& source, int64_t row, float limit);

}  // namespace quire::gemm

// Packing of 4-bit weights: sixteen columns side by side, a lane of a vector for each.
//
// A column is scaled so that its largest number becomes 119: then (u - zero) * step, at most half a
// step of 16 away from it, stays within 127. For each group a few steps and zeros are tried and
// those with the smallest sum of squared errors kept. Errors are counted in eighths, in whole
// numbers below 2^24, so that float32 holds them exactly and every tier keeps the same.
#include "linear/packing/pack_int4.h"

#include <cstring>

#include "linear/int4_weights.h"

namespace quire::gemm {
namespace {

constexpr float kRowLimit = 119.0f;
constexpr float kFine = 8.0f;  // errors are counted in parts of an integer, so many
constexpr float kTop = 15.0f;  // of a number of 4 bits
constexpr int kStepsTried = 3;
constexpr int kZerosTried = 2;

// The step and the zero of a group, for each lane.
struct Grid {
  F32x16 step;
  F32x16 zero;
};

QUIRE_INLINE F32x16 clamped(F32x16 x, float low, float high) {
  return minimum(maximum(x, splat(low)), splat(high));
}

// The 4-bit number for `value`, whole counts; `inverse` is 1 / (step * kFine).
QUIRE_INLINE F32x16 number(F32x16 value, F32x16 inverse, F32x16 zero) {
  return clamped(round_whole(value * inverse) + zero, 0.0f, kTop);
}

QUIRE_INLINE F32x16 squared_error(const float* values, const Grid& grid) {
  const F32x16 size = grid.step * kFine;
  const F32x16 inverse = 1.0f / size;
  F32x16 total = {};
  for (int64_t i = 0; i < kInt4Group; ++i) {
    const F32x16 u = number(load<F32x16>(values + i * kLanes), inverse, grid.zero);
    const F32x16 error = (u - grid.zero) * size - load<F32x16>(values + i * kLanes);
    total += error * error;
  }
  return total;
}

// From the step that just spans the group downwards; zeros on both sides of the middle.
Grid best_grid(const float* values) {
  F32x16 low = {};
  F32x16 high = {};
  for (int64_t i = 0; i < kInt4Group; ++i) {
    low = minimum(load<F32x16>(values + i * kLanes), low);
    high = maximum(load<F32x16>(values + i * kLanes), high);
  }
  // Adding not quite a half before rounding: the next whole number above, below the next one.
  const F32x16 spanning = round_whole((high - low + (kTop * kFine - 1) / 2) / (kTop * kFine));
  Grid best = {};
  F32x16 least = splat(1e30f);
  for (int less = 0; less < kStepsTried; ++less) {
    Grid grid;
    grid.step = maximum(spanning - static_cast<float>(less), splat(1.0f));
    const F32x16 size = grid.step * kFine;
    const F32x16 middle = round_whole((size * (kTop - 1) - low - high + 0.5f) / (2.0f * size));
    for (int more = 0; more < kZerosTried; ++more) {
      grid.zero = clamped(middle + static_cast<float>(more), 0.0f, kTop);
      const F32x16 error = squared_error(values, grid);
      best.step = if_less(error, least, grid.step, best.step);
      best.zero = if_less(error, least, grid.zero, best.zero);
      least = minimum(error, least);
    }
  }
  return best;
}

// One slab of sixteen columns as it will lie in memory.
struct PackedSlab {
  int32_t codes[kSlabGroups][kLanes];
  int32_t lines[kSlabGroups][kGroupLines][kLanes];
  int32_t totals[kLanes];  // of each column's integers
};

PackedSlab pack_slab(const float* values) {
  PackedSlab out;
  I32x16 totals = {};
  for (int64_t g = 0; g < kSlabGroups; ++g, values += kInt4Group * kLanes) {
    const Grid grid = best_grid(values);
    const F32x16 inverse = 1.0f / (grid.step * kFine);
    I32x16 lines[kGroupLines] = {};
    for (int64_t i = 0; i < kInt4Group; ++i) {
      const F32x16 u = number(load<F32x16>(values + i * kLanes), inverse, grid.zero);
      const int shift = static_cast<int>(8 * (i % 4) + (i % kInt4LineDepth < 4 ? 0 : 4));
      I32x16& line = lines[i / kInt4LineDepth];
      line = line | convert<I32x16>(u) << shift;
      totals += convert<I32x16>((u - grid.zero) * grid.step);
    }
    store(out.codes[g], convert<I32x16>(grid.step - 1.0f + grid.zero * 16.0f));
    for (int64_t i = 0; i < kGroupLines; ++i) store(out.lines[g][i], lines[i]);
  }
  store(out.totals, totals);
  return out;
}

}  // namespace

bool Int4HalfStripWriter::write(int64_t row, int64_t count, int64_t column, bool zero_rest) {
  const int64_t end = zero_rest ? kLanes : column + count;
  float inverse[kLanes] = {};
  bool finite = true;
  for (int64_t c = column; c < end; ++c) {
    WeightScale found = {};
    if (c < column + count) found = weight_scale(source, row + c - column, kRowLimit);
    inverse[c] = found.inverse;
    scales[c] = found.scale;
    offsets[c] = 0;
    finite &= found.is_finite();
  }
  const F32x16 inverses = load<F32x16>(inverse);
  alignas(64) float numbers[kSlabDepth][kLanes] = {};
  alignas(64) float values[kSlabDepth * kLanes];
  for (int64_t slab = 0; slab < slabs; ++slab) {
    for (int64_t c = column; c < column + count; ++c) {
      float line[kSlabDepth];
      read_row(source, row + c - column, slab * kSlabDepth, kSlabDepth, line);
      for (int64_t i = 0; i < kSlabDepth; ++i) numbers[i][c] = line[i];
    }
    for (int64_t i = 0; i < kSlabDepth; ++i) {
      const F32x16 scaled = load<F32x16>(numbers[i]) * inverses * kFine;
      // What is not a number, its scale being NaN, becomes any number.
      store(values + i * kLanes, round_whole(minimum(scaled, splat(kRowLimit * kFine))));
    }
    const PackedSlab packed = pack_slab(values);
    uint8_t* out = strip + slab * kSlabBytes;
    for (int64_t c = column; c < end; ++c) {
      for (int64_t g = 0; g < kSlabGroups; ++g) {
        out[g * kSlabColumns + first + c] = static_cast<uint8_t>(packed.codes[g][c]);
        uint8_t* word = out + kCodeBytes + g * kGroupLines * kInt4LineBytes + (first + c) * 4;
        for (int64_t line = 0; line < kGroupLines; ++line) {
          const int32_t bits = packed.lines[g][line][c];
          std::memcpy(word + line * kInt4LineBytes, &bits, sizeof bits);
        }
      }
      offsets[c] += 128 * packed.totals[c];
    }
  }
  return finite;
}

}  // namespace quire::gemm

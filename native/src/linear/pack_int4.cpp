// Packing of 4-bit weights: sixteen columns side by side, a lane of a vector for each.
//
// A column is scaled so that its largest number becomes 119: then (u - zero) * step, at most half a
// step of 16 away from it, stays within 127. For each group a few steps and zeros are tried and
// those with the smallest sum of squared errors kept. Errors are counted in eighths, in whole
// numbers below 2^24, so that float32 holds them exactly and every tier keeps the same.
#include "linear/pack_int4.h"

#include <cstring>

#include "linear/int4_weights.h"

namespace quire::gemm {
namespace {

constexpr float kRowLimit = 119.0f;
constexpr float kFine = 8.0f;  // counts of an integer
constexpr float kTop = 15.0f;  // of a number of 4 bits
constexpr int kStepsTried = 3;
constexpr int kZerosTried = 2;

// A register at a time: gcc keeps longer vectors in memory between the operations (10 times
// slower).
QUIRE_INLINE F32Part smaller(F32Part a, F32Part b) { return a < b ? a : b; }
QUIRE_INLINE F32Part larger(F32Part a, F32Part b) { return b < a ? a : b; }
QUIRE_INLINE F32Part rounded(F32Part x) { return (x + 12582912.0f) - 12582912.0f; }

// How the numbers of a group in each lane are held.
struct Grid {
  F32Part step;
  F32Part zero;
};

QUIRE_INLINE F32Part clamped(F32Part x, float low, float high) {
  return smaller(larger(x, low - F32Part{}), high - F32Part{});
}

// The 4-bit number for `value`, whole counts; `inverse` is 1 / (step * kFine).
QUIRE_INLINE F32Part number(F32Part value, F32Part inverse, F32Part zero) {
  return clamped(rounded(value * inverse) + zero, 0.0f, kTop);
}

QUIRE_INLINE F32Part squared_error(const float* values, const Grid& grid) {
  const F32Part size = grid.step * kFine;
  const F32Part inverse = 1.0f / size;
  F32Part total = {};
  for (int64_t i = 0; i < kInt4Group; ++i) {
    const F32Part u = number(load<F32Part>(values + i * kLanes), inverse, grid.zero);
    const F32Part error = (u - grid.zero) * size - load<F32Part>(values + i * kLanes);
    total += error * error;
  }
  return total;
}

// From the step that just spans the group downwards; zeros on both sides of the middle.
Grid best_grid(const float* values) {
  F32Part low = {};
  F32Part high = {};
  for (int64_t i = 0; i < kInt4Group; ++i) {
    low = smaller(load<F32Part>(values + i * kLanes), low);
    high = larger(load<F32Part>(values + i * kLanes), high);
  }
  // Adding not quite a half before rounding: the next whole number above, below the next one.
  const F32Part spanning = rounded((high - low + (kTop * kFine - 1) / 2) / (kTop * kFine));
  Grid best = {};
  F32Part least = 1e30f - F32Part{};
  for (int less = 0; less < kStepsTried; ++less) {
    Grid grid;
    grid.step = larger(spanning - static_cast<float>(less), 1.0f - F32Part{});
    const F32Part size = grid.step * kFine;
    const F32Part middle = rounded((size * (kTop - 1) - low - high + 0.5f) / (2.0f * size));
    for (int more = 0; more < kZerosTried; ++more) {
      grid.zero = clamped(middle + static_cast<float>(more), 0.0f, kTop);
      const F32Part error = squared_error(values, grid);
      best.step = error < least ? grid.step : best.step;
      best.zero = error < least ? grid.zero : best.zero;
      least = smaller(error, least);
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
  PackedSlab out = {};
  for (int64_t g = 0; g < kSlabGroups; ++g, values += kInt4Group * kLanes) {
    for (int64_t c = 0; c < kLanes; c += kPartLanes) {
      const float* part = values + c;
      const Grid grid = best_grid(part);
      const F32Part inverse = 1.0f / (grid.step * kFine);
      I32Part lines[kGroupLines] = {};
      I32Part total = {};
      for (int64_t i = 0; i < kInt4Group; ++i) {
        const F32Part u = number(load<F32Part>(part + i * kLanes), inverse, grid.zero);
        const int64_t shift = 8 * (i % 4) + (i % kInt4LineDepth < 4 ? 0 : 4);
        lines[i / kInt4LineDepth] |= __builtin_convertvector(u, I32Part) << shift;
        total += __builtin_convertvector((u - grid.zero) * grid.step, I32Part);
      }
      const F32Part code = grid.step - 1.0f + grid.zero * 16.0f;
      store(out.codes[g] + c, __builtin_convertvector(code, I32Part));
      store(out.totals + c, load<I32Part>(out.totals + c) + total);
      for (int64_t i = 0; i < kGroupLines; ++i) store(out.lines[g][i] + c, lines[i]);
    }
  }
  return out;
}

}  // namespace

void Int4HalfStripWriter::write(int64_t row, int64_t count, int64_t column, bool zero_rest) {
  const int64_t end = zero_rest ? kLanes : column + count;
  float inverse[kLanes] = {};
  for (int64_t c = column; c < end; ++c) {
    WeightScale found = {};
    if (c < column + count) found = weight_scale(source, row + c - column, kRowLimit);
    inverse[c] = found.inverse;
    scales[c] = found.scale;
    offsets[c] = 0;
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
}

}  // namespace quire::gemm

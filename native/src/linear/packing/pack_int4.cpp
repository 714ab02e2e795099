// Packing of 4-bit weights: sixteen columns side by side, a lane of a vector for each.
//
// A column is scaled so that its largest number becomes 119: then u * step - offset, at most half a
// step of 16 away from it, stays within 127. For each group two steps and three offsets are tried.
// An offset is improved once: it becomes the best one for the numbers u that were found with it.
// The pair with the smallest sum of squared errors is kept. Numbers are counted in eighths, and
// sums stay below 2^24, so that float32 holds them exactly and every tier keeps the same.
#include "linear/packing/pack_int4.h"

#include <cstring>

#include "linear/int4_weights.h"

namespace quire::gemm {
namespace {

constexpr float kRowLimit = 119.0f;
constexpr float kFine = 8.0f;  // errors are counted in parts of an integer, so many
constexpr float kTop = 15.0f;  // of a number of 4 bits
constexpr float kMostOffset = 127.0f;
constexpr int kStepsTried = 2;
constexpr float kMiddles[] = {7.5f, 7.1875f, 7.8125f};  // u of the middle of a group

// The step and the offset of a group, for each lane.
struct Grid {
  F32x16 step;
  F32x16 offset;
};

QUIRE_INLINE F32x16 clamped(F32x16 x, float low, float high) {
  return minimum(maximum(x, splat(low)), splat(high));
}

QUIRE_INLINE F32x16 whole_offset(F32x16 offset) {
  return clamped(round_whole(offset), 0.0f, kMostOffset);
}

// The 4-bit number for `value`, in eighths; `inverse` is 1 / (step * kFine).
QUIRE_INLINE F32x16 number(F32x16 value, const Grid& grid, F32x16 inverse) {
  return clamped(round_whole((value + grid.offset * kFine) * inverse), 0.0f, kTop);
}

struct Errors {
  F32x16 sum;
  F32x16 squares;
};

// Of u * step - offset against each number of a group.
QUIRE_INLINE Errors errors_of(const float* values, const Grid& grid, F32x16 inverse) {
  const F32x16 size = grid.step * kFine;
  const F32x16 shift = grid.offset * kFine;
  Errors total = {};
  for (int64_t i = 0; i < kInt4Group; ++i) {
    const F32x16 value = load<F32x16>(values + i * kLanes);
    const F32x16 error = number(value, grid, inverse) * size - shift - value;
    total.sum += error;
    total.squares += error * error;
  }
  return total;
}

// The step that just spans the group and the next smaller one; the middle of the group in the
// middle of the numbers u and to both sides of it.
Grid best_grid(const float* values) {
  F32x16 low = {};
  F32x16 high = {};
  for (int64_t i = 0; i < kInt4Group; ++i) {
    low = minimum(load<F32x16>(values + i * kLanes), low);
    high = maximum(load<F32x16>(values + i * kLanes), high);
  }
  // Adding not quite a half before rounding: the next whole number above, below the next one.
  const F32x16 spanning = round_whole((high - low + (kTop * kFine - 1) / 2) / (kTop * kFine));
  const F32x16 middle = (low + high) * (0.5f / kFine);
  Grid best = {};
  F32x16 least = splat(1e30f);
  for (int less = 0; less < kStepsTried; ++less) {
    Grid grid;
    grid.step = maximum(spanning - static_cast<float>(less), splat(1.0f));
    const F32x16 inverse = 1.0f / (grid.step * kFine);
    for (const float at : kMiddles) {
      grid.offset = whole_offset(grid.step * at - middle);
      for (int improved = 0; improved < 2; ++improved) {
        const Errors errors = errors_of(values, grid, inverse);
        best.step = if_less(errors.squares, least, grid.step, best.step);
        best.offset = if_less(errors.squares, least, grid.offset, best.offset);
        least = minimum(errors.squares, least);
        grid.offset = whole_offset(grid.offset + errors.sum * (1.0f / (kFine * kInt4Group)));
      }
    }
  }
  return best;
}

// One slab of sixteen columns as it will lie in memory.
struct PackedSlab {
  int32_t offsets[kSlabGroups][kLanes];
  int32_t steps[kLanes];  // less one; of the first group in the lower 4 bits
  int32_t lines[kSlabGroups][kGroupLines][kLanes];
  int32_t totals[kLanes];  // of each column's integers
};

PackedSlab pack_slab(const float* values) {
  PackedSlab out;
  I32x16 totals = {};
  I32x16 steps = {};
  for (int64_t g = 0; g < kSlabGroups; ++g, values += kInt4Group * kLanes) {
    const Grid grid = best_grid(values);
    const F32x16 inverse = 1.0f / (grid.step * kFine);
    I32x16 lines[kGroupLines] = {};
    for (int64_t i = 0; i < kInt4Group; ++i) {
      const F32x16 u = number(load<F32x16>(values + i * kLanes), grid, inverse);
      const int shift = static_cast<int>(8 * (i % 4) + (i % kInt4LineDepth < 4 ? 0 : 4));
      I32x16& line = lines[i / kInt4LineDepth];
      line = line | convert<I32x16>(u) << shift;
      totals += convert<I32x16>(u * grid.step - grid.offset);
    }
    store(out.offsets[g], convert<I32x16>(grid.offset));
    steps = steps | convert<I32x16>(grid.step - 1.0f) << static_cast<int>(4 * g);
    for (int64_t i = 0; i < kGroupLines; ++i) store(out.lines[g][i], lines[i]);
  }
  store(out.steps, steps);
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
      out[kStepsAt + first + c] = static_cast<uint8_t>(packed.steps[c]);
      for (int64_t g = 0; g < kSlabGroups; ++g) {
        out[g * kSlabColumns + first + c] = static_cast<uint8_t>(packed.offsets[g][c]);
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

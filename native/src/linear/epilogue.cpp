// From raw sums to outputs: the scales of rows and columns, factor, bias, activation, gate,
// residual, rounding.
//
// Called by the families while the sums are still in the first-level cache. One function serves
// every row of every product, so that an element goes through the same operations always.
#include <algorithm>
#include <type_traits>

#include "linear/activation.h"
#include "linear/family.h"
#include "linear/low_rank.h"
#include "linear/row_outliers.h"
#include "simd/simd.h"
#if defined(__AMX_BF16__)
#include "linear/amx/amx_low_rank.h"
#endif

namespace quire::gemm {
namespace {

// Columns at the right edge of a matrix may be fewer than a vector: loads and stores then go
// through a padded copy, and the arithmetic in between stays the same.
QUIRE_INLINE F32x16 load_columns(const float* p, int64_t columns) {
  if (columns >= kLanes) return load<F32x16>(p);
  float padded[kLanes] = {};
  std::copy_n(p, std::max<int64_t>(columns, 0), padded);
  return load<F32x16>(padded);
}

template <class V, class T>
QUIRE_INLINE void store_columns(T* p, V v, int64_t columns) {
  if (columns >= kLanes) return store(p, v);
  T padded[kLanes];
  store(padded, v);
  std::copy_n(padded, std::max<int64_t>(columns, 0), p);
}

struct StripPlace {
  int64_t column;   // first output column of the strip
  int64_t columns;  // outputs that exist from there on
  F32x16 bias[2];
};

// The outputs of a strip from one row on. Copied out of the arguments, so that the compiler knows
// that writing outputs does not change them.
template <class Out>
class Outputs {
 public:
  Outputs(const LinearArgs& args, const StripPlace& place, int64_t row0)
      : out_(static_cast<Out*>(args.out) + row0 * args.out_stride + place.column),
        stride_(args.out_stride),
        residual_(args.residual ? args.residual + row0 * args.residual_stride + place.column
                                : nullptr),
        residual_stride_(args.residual_stride),
        columns_(place.columns) {}

  // Adds the residual and writes one vector from column `at` of the strip on, as far as columns
  // exist.
  QUIRE_INLINE void write(int64_t row, int64_t at, F32x16 value) const {
    const int64_t columns = columns_ - at;
    if (residual_) value += load_columns(residual_ + row * residual_stride_ + at, columns);
    Out* to = out_ + row * stride_ + at;
    if constexpr (sizeof(Out) == 4) {
      store_columns(to, value, columns);
    } else {
      store_columns(to, f32_to_bf16(value), columns);
    }
  }

 private:
  Out* const out_;
  const int64_t stride_;
  const float* const residual_;
  const int64_t residual_stride_;
  const int64_t columns_;
};

// Half rows of sums as numbers, with all their factors.
struct FloatSums {
  float* data;
  float factor;

  QUIRE_INLINE F32x16 at(int64_t row, int half) const {
    return load<F32x16>(data + row * kStripColumns + half * kHalfStrip) * factor;
  }
};

// Half rows of sums over groups, with the weights' scales in them.
struct GroupedSums {
  const float* data;
  const float* row_scales;
  float factor;

  QUIRE_INLINE F32x16 at(int64_t row, int half) const {
    return load<F32x16>(data + row * kStripColumns + half * kHalfStrip) * row_scales[row] * factor;
  }
};

template <int kPlanes>
struct IntegerSums {
  const float* data;
  const float* row_scales;
  int upper_bits;
  F32x16 scales[2];
  I32x16 offsets[2];

  IntegerSums(const Block& block, int64_t strip, const Sums& sums)
      : data(sums.data), row_scales(sums.row_scales), upper_bits(sums.upper_bits) {
    for (int half = 0; half < 2; ++half) {
      const int64_t column = strip * kStripColumns + half * kHalfStrip;
      scales[half] = load<F32x16>(block.scales + column) * block.args->scale;
      offsets[half] = sums.shifted ? load<I32x16>(block.offsets + column) : I32x16{};
    }
  }

  QUIRE_INLINE F32x16 at(int64_t row, int half) const {
    I32x16 upper = whole(row * kPlanes, half);
    F32x16 value;
    if constexpr (kPlanes == 2) {
      // The sum's own digits, so that families whose two numbers are others give the same bits.
      const I32x16 low = whole(row * kPlanes + 1, half);
      upper = (upper << upper_bits) + (low >> 8);
      value = convert<F32x16>(upper) * 256.0f + convert<F32x16>(low & 255);
    } else {
      value = convert<F32x16>(upper);
    }
    return value * row_scales[row] * scales[half];
  }

 private:
  QUIRE_INLINE I32x16 whole(int64_t line, int half) const {
    const float* place = data + line * kStripColumns + half * kHalfStrip;
    return load<I32x16>(place) - offsets[half];
  }
};

template <Activation kind, class Reader, class Out>
void finish_plain(const StripPlace place, const Outputs<Out> outputs, int64_t rows,
                  const Reader sums) {
  const bool both = place.columns > kHalfStrip;
  for (int64_t r = 0; r < rows; ++r) {
    outputs.write(r, 0, activate<kind>(sums.at(r, 0) + place.bias[0]));
    if (!both) continue;
    outputs.write(r, kHalfStrip, activate<kind>(sums.at(r, 1) + place.bias[1]));
  }
}

template <Activation kind, class Reader, class Out>
void finish_glu(const StripPlace place, const Outputs<Out> outputs, int64_t rows,
                const Reader sums) {
  for (int64_t r = 0; r < rows; ++r) {
    const F32x16 gate = sums.at(r, 0) + place.bias[0];
    const F32x16 up = sums.at(r, 1) + place.bias[1];
    outputs.write(r, 0, activate_glu<kind>(gate, up));
  }
}

StripPlace place_of(const LinearArgs& args, int64_t strip) {
  const bool glu = args.weight->glu;
  const int64_t width = glu ? kHalfStrip : kStripColumns;
  const int64_t outputs = glu ? args.weight->n / 2 : args.weight->n;
  StripPlace place{strip * width, outputs - strip * width, {}};
  if (args.bias == nullptr) return place;
  const float* first = args.bias + place.column;
  const float* second = first + (glu ? outputs : kHalfStrip);
  place.bias[0] = load_columns(first, place.columns);
  place.bias[1] = load_columns(second, glu ? place.columns : place.columns - kHalfStrip);
  return place;
}

// Some rows of the outputs, from the first of a tile on.
struct RowSpan {
  int64_t first;
  int64_t count;
};

template <Activation kind, class Out, class Reader>
void finish_as(const LinearArgs& args, int64_t strip, RowSpan rows, const Reader& sums) {
  const StripPlace place = place_of(args, strip);
  const Outputs<Out> outputs(args, place, rows.first);
  if (args.weight->glu) {
    finish_glu<kind>(place, outputs, rows.count, sums);
  } else {
    finish_plain<kind>(place, outputs, rows.count, sums);
  }
}

template <Activation kind, class Reader>
void finish_rows(const LinearArgs& args, int64_t strip, RowSpan rows, const Reader& sums) {
  if (args.out_dtype == DType::kF32) {
    finish_as<kind, float>(args, strip, rows, sums);
  } else {
    finish_as<kind, uint16_t>(args, strip, rows, sums);
  }
}

void finish_sums(const LinearArgs& args, int64_t strip, RowSpan rows, const FloatSums& sums) {
  with_activation(args.activation,
                  [&](auto kind) { finish_rows<decltype(kind)::value>(args, strip, rows, sums); });
}

constexpr int64_t kChangedRows = 16;  // of a tile, changed before they are finished

// Rows with the same change.
struct AlikeRows {
  const float* hidden[kChangedRows];
  float* values[kChangedRows];  // of the first half strip, before the change
  int64_t count = 0;
};

template <int kRows, int kHalves>
QUIRE_INLINE void change_some(const LowRank& by, int64_t half, float factor,
                              const float* const* hidden, float* const* values) {
  F32x16 added[kRows][kHalves];
  expand(by, half, hidden, added);
  for (int h = 0; h < kHalves; ++h) {
    const int64_t at = half % 2 * kHalfStrip + h * kHalfStrip;
    for (int r = 0; r < kRows; ++r) {
      F32x16 value = load<F32x16>(values[r] + at) + added[r][h] * factor;
      if (by.gains) value = value * load<F32x16>(by.gains + (half + h) * kHalfStrip);
      store(values[r] + at, value);
    }
  }
}

// The rows from `done` on, as many as possible at a time.
template <int kRows, int kHalves>
QUIRE_INLINE void change_alike(const LowRank& by, int64_t half, float factor, const AlikeRows& rows,
                               int64_t done = 0) {
  for (; done + kRows <= rows.count; done += kRows) {
    change_some<kRows, kHalves>(by, half, factor, rows.hidden + done, rows.values + done);
  }
  if constexpr (kRows > 1) change_alike<kRows / 2, kHalves>(by, half, factor, rows, done);
}

void change_strip(const LowRank& by, int64_t strip, float factor, const AlikeRows& rows) {
  const LowRank::Half& first = by.halves[2 * strip];
  const LowRank::Half& second = by.halves[2 * strip + 1];
  if (first.first == second.first && first.count == second.count) {
    return change_alike<kExpandedRows, 2>(by, 2 * strip, factor, rows);
  }
  change_alike<kExpandedRows, 1>(by, 2 * strip, factor, rows);
  change_alike<kExpandedRows, 1>(by, 2 * strip + 1, factor, rows);
}

#if defined(__AMX_BF16__)
// What changes on tiles consist of besides B h.
void add_bias_and_gains(const RowChanges& changes, int64_t strip, float factor, RowSpan rows,
                        float* values) {
  for (int64_t r = 0; r < rows.count; ++r, values += kStripColumns) {
    const LowRank* by = changes.rows[rows.first + r].by;
    if (by == nullptr || !by->on_tiles || (!by->bias && !by->gains)) continue;
    for (int64_t at = 0; at < kStripColumns; at += kLanes) {
      auto value = load<F32x16>(values + at);
      if (by->bias) value += load<F32x16>(by->bias + strip * kStripColumns + at) * factor;
      if (by->gains) value = value * load<F32x16>(by->gains + strip * kStripColumns + at);
      store(values + at, value);
    }
  }
}

void finish_on_tiles(const RowChanges& changes, int64_t strip, float factor, RowSpan rows,
                     float* values) {
  if (changes.of_tiles == nullptr) return;
  if (!changes.are_in_sums) change_on_tiles(changes, strip, rows.first, rows.count, values);
  if (changes.has_more) add_bias_and_gains(changes, strip, factor, rows, values);
}
#else
void finish_on_tiles(const RowChanges&, int64_t, float, RowSpan, float*) {}
#endif

void change_rows(const RowChanges& changes, int64_t strip, float factor, RowSpan rows,
                 float* values) {
  finish_on_tiles(changes, strip, factor, rows, values);
  const int64_t end = rows.first + rows.count;
  for (int64_t first = rows.first; first < end; ++first) {
    const RowChange& change = changes.rows[first];
    if (change.by == nullptr || change.by->on_tiles || change.previous >= rows.first) continue;
    AlikeRows alike;
    for (int64_t r = first; r >= 0 && r < end; r = changes.rows[r].next) {
      alike.hidden[alike.count] = static_cast<const float*>(changes.rows[r].hidden);
      alike.values[alike.count++] = values + (r - rows.first) * kStripColumns;
    }
    change_strip(*change.by, strip, factor, alike);
  }
}

// Some rows of sums as numbers that may be changed, in `room` where they are not there already.
template <class Reader>
float* numbers_of(const Reader& sums, int64_t first, int64_t count, float* room) {
  if constexpr (std::is_same_v<Reader, FloatSums>) {
    if (sums.factor == 1.0f) return sums.data + first * kStripColumns;
  }
  for (int64_t r = 0; r < count; ++r) {
    store(room + r * kStripColumns, sums.at(first + r, 0));
    store(room + r * kStripColumns + kHalfStrip, sums.at(first + r, 1));
  }
  return room;
}

// As `finish_sums`, by way of numbers, some of whose rows may be changed first. Those that are not
// go through the same operations as ever: a factor of 1 changes no bit.
template <class Reader>
void finish_numbers(const LinearArgs& args, int64_t strip, RowSpan rows, const Reader& sums,
                    bool are_changed) {
  alignas(64) float room[kChangedRows * kStripColumns];
  for (int64_t done = 0; done < rows.count; done += kChangedRows) {
    const RowSpan some{rows.first + done, std::min(kChangedRows, rows.count - done)};
    float* values = numbers_of(sums, done, some.count, room);
    if (are_changed) change_rows(*args.changes, strip, args.scale, some, values);
    finish_sums(args, strip, some, FloatSums{values, 1.0f});
  }
}

// Activations of other sums than floats are computed by way of numbers: each is compiled once, and
// takes much longer than to write and read a number.
template <class Reader>
void finish_any(const LinearArgs& args, int64_t strip, RowSpan rows, const Reader& sums) {
  const RowChanges* changes = args.changes;
  const bool are_changed = changes != nullptr && (!changes->are_in_sums || changes->has_more);
  if constexpr (std::is_same_v<Reader, FloatSums>) {
    if (!are_changed) return finish_sums(args, strip, rows, sums);
  } else {
    if (!are_changed && !args.weight->glu && args.activation == QUIRE_ACTIVATION_IDENTITY) {
      return finish_rows<QUIRE_ACTIVATION_IDENTITY>(args, strip, rows, sums);
    }
  }
  finish_numbers(args, strip, rows, sums, are_changed);
}

}  // namespace

void Block::finish(int64_t strip, int64_t tile, const Sums& of_tile) const {
  const int64_t at = first_strip + strip;
  const RowSpan which{first_row + tile * (rows / planes), rows_of(tile) / planes};
  if (of_tile.row_scales == nullptr) {
    finish_any(*args, at, which, FloatSums{of_tile.data, args->scale});
  } else if (of_tile.grouped) {
    finish_any(*args, at, which, GroupedSums{of_tile.data, of_tile.row_scales, args->scale});
  } else if (planes == 1) {
    if (of_tile.outliers) add_outliers(of_tile, weight + strip * strip_bytes, which.count);
    finish_any(*args, at, which, IntegerSums<1>(*this, strip, of_tile));
  } else {
    finish_any(*args, at, which, IntegerSums<2>(*this, strip, of_tile));
  }
}

}  // namespace quire::gemm

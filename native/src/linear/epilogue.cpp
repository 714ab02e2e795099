// The epilogue of a product; see epilogue.h.
#include "linear/epilogue.h"

#include <algorithm>

#include "linear/activation.h"
#include "linear/simd.h"

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

// Adds the residual and writes one vector of outputs, `columns` of which exist.
QUIRE_INLINE void write(const LinearArgs& args, int64_t row, int64_t column, int64_t columns,
                        F32x16 value) {
  if (args.residual != nullptr) {
    value += load_columns(args.residual + row * args.residual_stride + column, columns);
  }
  const int64_t at = row * args.out_stride + column;
  if (args.out_dtype == DType::kF32) {
    store_columns(static_cast<float*>(args.out) + at, value, columns);
  } else {
    store_columns(static_cast<uint16_t*>(args.out) + at, f32_to_bf16(value), columns);
  }
}

struct StripPlace {
  int64_t column;   // first output column of the strip
  int64_t columns;  // outputs that exist from there on
  F32x16 bias[2];
};

template <Activation kind>
void finish_plain(const LinearArgs& args, const StripPlace& place, int64_t row0, int64_t rows,
                  const float* sums) {
  const F32x16 scale = splat(args.scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int half = 0; half < 2; ++half) {
      const int64_t columns = place.columns - half * kHalfStrip;
      if (columns <= 0) break;
      const F32x16 sum = load<F32x16>(sums + r * kStripColumns + half * kHalfStrip);
      write(args, row0 + r, place.column + half * kHalfStrip, columns,
            activate<kind>(sum * scale + place.bias[half]));
    }
  }
}

template <Activation kind>
void finish_glu(const LinearArgs& args, const StripPlace& place, int64_t row0, int64_t rows,
                const float* sums) {
  const F32x16 scale = splat(args.scale);
  for (int64_t r = 0; r < rows; ++r) {
    const F32x16 gate = load<F32x16>(sums + r * kStripColumns) * scale + place.bias[0];
    const F32x16 up = load<F32x16>(sums + r * kStripColumns + kHalfStrip) * scale + place.bias[1];
    write(args, row0 + r, place.column, place.columns, activate<kind>(gate) * up);
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

template <Activation kind>
void finish(const LinearArgs& args, int64_t strip, int64_t row0, int64_t rows, const float* sums) {
  const StripPlace place = place_of(args, strip);
  if (args.weight->glu) {
    finish_glu<kind>(args, place, row0, rows, sums);
  } else {
    finish_plain<kind>(args, place, row0, rows, sums);
  }
}

}  // namespace

void finish_strip(const LinearArgs& args, int64_t strip, int64_t row0, int64_t rows,
                  const float* sums) {
  switch (args.activation) {
    case Activation::kNone:
      return finish<Activation::kNone>(args, strip, row0, rows, sums);
    case Activation::kSilu:
      return finish<Activation::kSilu>(args, strip, row0, rows, sums);
    case Activation::kGelu:
      return finish<Activation::kGelu>(args, strip, row0, rows, sums);
    case Activation::kGeluTanh:
      return finish<Activation::kGeluTanh>(args, strip, row0, rows, sums);
    case Activation::kRelu:
      return finish<Activation::kRelu>(args, strip, row0, rows, sums);
  }
}

}  // namespace quire::gemm

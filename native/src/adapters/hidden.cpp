// A x, on vectors or on AMX tiles.
#include "adapters/hidden.h"

#include <algorithm>

#include "adapters/adapter.h"
#include "simd/dots.h"
#include "simd/vector.h"
#if defined(__AMX_BF16__)
#include "linear/amx/amx_family.h"
#include "linear/amx/amx_low_rank.h"
#endif

namespace quire {
namespace {

// Rows of x, as a product reads them.
struct RowsOfX {
  const uint8_t* data;
  const int32_t* which;
  int32_t dtype;
  int64_t stride_bytes;

  explicit RowsOfX(const LinearArgs& args)
      : data(static_cast<const uint8_t*>(args.x)),
        which(args.x_rows),
        dtype(static_cast<int32_t>(args.x_dtype)),
        stride_bytes(args.x_stride * (args.x_dtype == DType::kF32 ? 4 : 2)) {}

  const uint8_t* row(int64_t r) const { return data + (which ? which[r] : r) * stride_bytes; }
};

// Rows that are multiplied with the same lines of A: as many sums as fit into registers.
constexpr int kTileRows = kTileLines;
constexpr int64_t kAheadBytes = 4096;  // of A, fetched ahead

template <class T>
QUIRE_INLINE F32x16 load_as(const T* p) {
  if constexpr (sizeof(T) == 4)
    return load_f32(p);
  else
    return load_bf16(p);
}

// Adds the products of a step of K: `x` of each row, with 64 bytes of each line of A.
template <int kRows, int kLines, class A, class X>
QUIRE_INLINE void add_step(const A* a, const X* const* x, F32x16 (&sums)[kRows][kLines]) {
  constexpr int64_t kStep = 64 / sizeof(A);
#if defined(QUIRE_DOTS_OF_BF16)
  if constexpr (sizeof(A) == 2 && sizeof(X) == 2) {
    U32x16 numbers[kRows];
    for (int r = 0; r < kRows; ++r) numbers[r] = gemm::load<U32x16>(x[r]);
    for (int l = 0; l < kLines; ++l) {
      const auto own = gemm::load<U32x16>(a + l * kStep);
      for (int r = 0; r < kRows; ++r) {
        sums[r][l] = gemm::lanewise(gemm::dot_bf16, sums[r][l], numbers[r], own);
      }
    }
    return;
  }
#endif
  for (int64_t i = 0; i < kStep; i += kLanes) {
    F32x16 numbers[kRows];
    for (int r = 0; r < kRows; ++r) numbers[r] = load_as(x[r] + i);
    for (int l = 0; l < kLines; ++l) {
      const F32x16 own = load_as(a + l * kStep + i);
      for (int r = 0; r < kRows; ++r) sums[r][l] = fma(numbers[r], own, sums[r][l]);
    }
  }
}

// Numbers of A x, `rows` and `lines` of them: each is summed along K in the same order always.
template <int kRows, int kLines, class A, class X>
void multiply_tile(const AdapterWeight& weight, const X* const* rows, int64_t line,
                   float* const* out) {
  constexpr int64_t kStep = 64 / sizeof(A);
  const A* a = reinterpret_cast<const A*>(weight.a) + weight.place(line, 0);
  F32x16 sums[kRows][kLines] = {};
  const X* x[kRows];
  std::copy_n(rows, kRows, x);
  int64_t i = 0;
  for (; i + kStep <= weight.k; i += kStep, a += kLines * kStep) {
    fetch_lines(reinterpret_cast<const uint8_t*>(a) + kAheadBytes, kLines * 64);
    add_step<kRows, kLines>(a, x, sums);
    for (const X*& row : x) row += kStep;
  }
  if (i < weight.k) {
    alignas(64) X rest[kRows][kStep] = {};
    for (int r = 0; r < kRows; ++r) {
      std::copy_n(x[r], weight.k - i, rest[r]);
      x[r] = rest[r];
    }
    add_step<kRows, kLines>(a, x, sums);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int l = 0; l < kLines; ++l) {
      out[r][line + l] = sum_lanes(sums[r][l]) * weight.scales[line + l];
    }
  }
}

template <int kRows, class A, class X>
void multiply_lines(const AdapterWeight& weight, const X* const* x, int64_t line, int64_t end,
                    float* const* out) {
  while (line < end) {
    if (weight.lines_together(line) == kTileLines) {
      multiply_tile<kRows, kTileLines, A>(weight, x, line, out);
      line += kTileLines;
    } else {
      multiply_tile<kRows, 1, A>(weight, x, line++, out);
    }
  }
}

// Where A x of a row is kept.
void* hidden_of(const HiddenUnit& unit, int64_t row, const AdapterScratch& scratch) {
  return const_cast<void*>(scratch.changes[unit.product].rows[row].hidden);
}

template <class A, class X>
void compute_as(const HiddenUnit& unit, const RowsOfX& x, const AdapterScratch& scratch) {
  const AdapterWeight& weight = *unit.weight;
  const int64_t end = std::min(unit.first_line + kUnitLines, weight.width);
  const X* from[kUnitRows];
  float* out[kUnitRows];
  for (int64_t i = 0; i < unit.count; ++i) {
    const int64_t row = scratch.rows[unit.first + i];
    from[i] = reinterpret_cast<const X*>(x.row(row));
    out[i] = static_cast<float*>(hidden_of(unit, row, scratch));
  }
  int64_t i = 0;
  for (; i + kTileRows <= unit.count; i += kTileRows) {
    multiply_lines<kTileRows, A>(weight, from + i, unit.first_line, end, out + i);
  }
  for (; i < unit.count; ++i) multiply_lines<1, A>(weight, from + i, unit.first_line, end, out + i);
}

template <class A>
void compute_with(const HiddenUnit& unit, const RowsOfX& x, const AdapterScratch& scratch) {
  if (x.dtype == QUIRE_F32) return compute_as<A, float>(unit, x, scratch);
  compute_as<A, uint16_t>(unit, x, scratch);
}

#if defined(__AMX_BF16__)
using Tiles = gemm::AmxFamily<gemm::AmxBf16>;
void begin_tiles() { Tiles::begin(Tiles::kMaxTileRows, Format::kBF16); }
void end_tiles() { Tiles::end(); }

// 32 numbers of A x, as bfloat16, of each row.
void compute_on_tiles(const HiddenUnit& unit, const LinearArgs& args,
                      const AdapterScratch& scratch) {
  const AdapterWeight& weight = *unit.weight;
  const int64_t chunk = unit.first_line;
  const int64_t number = chunk * kTileNumbers;
  // Sums of the product get it later.
  const float factor = args.changes->are_in_sums ? 1.0f : args.scale;
  const int64_t a_bytes = weight.depth * kTileLinesOfA * 2;
  const gemm::Rows x{args.x, args.x_dtype, args.x_stride, weight.k, args.x_rows, nullptr};
  alignas(64) float sums[kShrunkRows * kTileNumbers];
  const int32_t* rows = scratch.rows.data() + unit.first;
  gemm::shrink({&x, rows, unit.count, weight.a + weight.chunks[chunk], a_bytes, sums},
               (weight.chunks[chunk + 1] - weight.chunks[chunk]) / a_bytes);
  for (int64_t i = 0; i < unit.count; ++i) {
    // Of the chunks before, there are all rows of the tile.
    auto* out = static_cast<uint16_t*>(hidden_of(unit, rows[i], scratch)) + number * 16;
    for (int64_t j = 0; j < kTileNumbers; j += kLanes) {
      const F32x16 scales = load_f32(weight.scales.data() + number + j) * factor;
      gemm::store(out + j, gemm::f32_to_bf16(load_f32(sums + i * kTileNumbers + j) * scales));
    }
  }
}
#else
void begin_tiles() {}
void end_tiles() {}
void compute_on_tiles(const HiddenUnit&, const LinearArgs&, const AdapterScratch&) {}
#endif

void compute(const HiddenUnit& unit, const LinearArgs& args, const AdapterScratch& scratch) {
  if (unit.weight->on_tiles) return compute_on_tiles(unit, args, scratch);
  const RowsOfX x(args);
  if (unit.weight->dtype == QUIRE_F32) return compute_with<float>(unit, x, scratch);
  compute_with<uint16_t>(unit, x, scratch);
}

}  // namespace

void compute_hidden(const AdapterScratch& scratch, const LinearArgs* args, Pool& pool) {
  const auto units = static_cast<int64_t>(scratch.units.size());
  if (units == 0) return;
  pool.run(units, [&](Worker& worker) {
    begin_tiles();
    for (int64_t i; (i = worker.grab_own(units)) < units;) {
      const HiddenUnit& unit = scratch.units[i];
      compute(unit, args[unit.product], scratch);
    }
    end_tiles();
  });
}

}  // namespace quire

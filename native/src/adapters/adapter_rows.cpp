// Groups the rows of a step by adapter, and computes A x of each group.
#include "adapters/adapter_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "adapters/adapter.h"
#include "runtime/model.h"
#include "simd/dots.h"
#include "simd/vector.h"
#if defined(__AMX_BF16__)
#include "linear/amx/amx_low_rank.h"
#endif

namespace quire {
namespace {

constexpr int64_t kUnitRows = 16;
constexpr int64_t kUnitLines = 8;

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
  const A* a = reinterpret_cast<const A*>(weight.a.data()) + weight.place(line, 0);
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
void begin_tiles() { gemm::begin_low_rank(); }
void end_tiles() { _tile_release(); }

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
  gemm::shrink({&x, rows, unit.count, weight.a.data() + weight.chunks[chunk], a_bytes, sums},
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

// Lists the rows of a product that have an adapter, those of each adapter together; `starts` says
// where they begin.
void list_rows(const Step& step, const ProductRows& product, int64_t m, AdapterScratch& scratch) {
  const std::vector<int32_t>& of = step.adapters.of(product.kind);
  const auto adapter_of = [&](int64_t i) {
    return of[product.first + (product.which ? product.which[i] : i)];
  };
  std::vector<int64_t>& starts = scratch.starts;
  starts.assign(step.batch.num_adapters + 1, 0);
  for (int64_t i = 0; i < m; ++i) ++starts[adapter_of(i) + 1];
  starts[0] = static_cast<int64_t>(scratch.rows.size());
  for (size_t n = 1; n < starts.size(); ++n) starts[n] += starts[n - 1];
  scratch.rows.resize(starts.back());
  // Each start moves to the end of its rows, which is where those of the next adapter begin.
  for (int64_t i = 0; i < m; ++i) {
    const int32_t adapter = adapter_of(i);
    if (adapter >= 0) scratch.rows[starts[adapter]++] = static_cast<int32_t>(i);
  }
}

// The units of work of the rows of an adapter, from `first` of `AdapterScratch::rows` on.
void list_units(const AdapterWeight& weight, int64_t product, int64_t first, int64_t end,
                AdapterScratch& scratch) {
  const int64_t most = weight.on_tiles ? kShrunkRows : kUnitRows;
  const int64_t step = weight.on_tiles ? 1 : kUnitLines;
  const int64_t lines = weight.on_tiles ? weight.width / kTileNumbers : weight.width;
  for (; first < end; first += most) {
    const int64_t count = std::min(most, end - first);
    for (int64_t line = 0; line < lines; line += step) {
      scratch.units.push_back({&weight, product, first, count, line});
    }
  }
}

// Puts the rows that have the same adapter on tiles and lie in the same tile together.
void plan_tiles(const LinearArgs& args, RowChange* rows, RowChanges& changes,
                AdapterScratch& scratch) {
  const Format format = args.weight->format;
  const int64_t tile_rows = rows_of_tiles(format, args.m);
  changes.of_tiles = scratch.tile_changes.data() + scratch.tile_changes.size();
  changes.tile_starts = scratch.tile_starts.data() + scratch.tile_starts.size();
  changes.tile_rows = tile_rows;
  changes.are_in_sums = change_place(format) == ChangePlace::kTilesOfSums;
  const auto begun = static_cast<int32_t>(scratch.tile_changes.size());
  for (int64_t i = 0; i < args.m; ++i) {
    const int64_t line = i % tile_rows;
    const auto number = static_cast<int32_t>(scratch.tile_changes.size()) - begun;
    if (line == 0) scratch.tile_starts.push_back(number);
    RowChange& row = rows[i];
    if (row.by == nullptr || !row.by->on_tiles) continue;
    if (row.previous >= i - line) {
      row.hidden = static_cast<const uint8_t*>(rows[row.previous].hidden) +
                   (i - row.previous) * kTileNumbers * 2;
      continue;
    }
    auto* hidden = static_cast<uint16_t*>(const_cast<void*>(row.hidden));
    std::memset(hidden, 0, AdapterScratch::bytes_of(*row.by));
    scratch.tile_changes.push_back({row.by, hidden});
    row.hidden = hidden + line * kTileNumbers;
  }
  scratch.tile_starts.push_back(static_cast<int32_t>(scratch.tile_changes.size()) - begun);
}

// Which rows of a product are changed, and the units of work of their A x. `first_row`: of those of
// all products that run together.
void plan_changes(const Step& step, const ProductRows* products, const LinearArgs& args,
                  int64_t index, int64_t first_row) {
  AdapterScratch& scratch = step.model.adapters;
  RowChange* row_changes = scratch.row_changes.data() + first_row;
  uint8_t* hidden = scratch.hidden->data() + first_row * scratch.row_bytes;
  RowChanges& changes = scratch.changes[index];
  const LowRank** known = scratch.known.data() + index * step.batch.num_adapters;
  changes = {};
  changes.rows = row_changes;
  changes.known = known;
  bool on_tiles = false;
  auto first = static_cast<int64_t>(scratch.rows.size());
  list_rows(step, products[index], args.m, scratch);
  for (int32_t n = 0; n < step.batch.num_adapters; ++n) {
    const int64_t end = scratch.starts[n];
    const AdapterWeight* weight =
        step.batch.adapters[n]->adapter.of_product(products[index].matrix);
    if (weight != nullptr && first < end) {
      const LowRank& by = weight->change;
      known[changes.num_known++] = &by;
      on_tiles |= by.on_tiles;
      changes.has_more |= !by.on_tiles || by.bias != nullptr || by.gains != nullptr;
      for (int64_t i = first; i < end; ++i) {
        const int32_t row = scratch.rows[i];
        row_changes[row] = {&by, hidden + row * scratch.row_bytes,
                            i > first ? scratch.rows[i - 1] : -1,
                            i + 1 < end ? scratch.rows[i + 1] : -1};
      }
      list_units(*weight, index, first, end, scratch);
    }
    first = end;
  }
  if (on_tiles) plan_tiles(args, row_changes, changes, scratch);
}

// Plans the changes of products that run together. A product without any is left as it is.
void plan_all(const Step& step, const ProductRows* products, LinearArgs* args, int64_t count) {
  AdapterScratch& scratch = step.model.adapters;
  int64_t total = 0;
  for (int64_t p = 0; p < count; ++p) total += args[p].m;
  scratch.rows.clear();
  scratch.units.clear();
  scratch.row_changes.assign(total, {});
  scratch.changes.resize(count);
  scratch.known.resize(count * step.batch.num_adapters);
  // Products point to them: they must not move.
  scratch.tile_changes.clear();
  scratch.tile_changes.reserve(total);
  scratch.tile_starts.clear();
  scratch.tile_starts.reserve(total + count);
  int64_t first = 0;
  for (int64_t p = 0; p < count; ++p) {
    const size_t units = scratch.units.size();
    plan_changes(step, products, args[p], p, first);
    if (scratch.units.size() > units) args[p].changes = &scratch.changes[p];
    first += args[p].m;
  }
}

}  // namespace

AdapterRows::AdapterRows(const quire_batch& batch) {
  if (batch.adapter_of == nullptr || batch.num_adapters == 0) return;
  const int32_t* of = batch.adapter_of;
  if (std::all_of(of, of + batch.num_seqs, [](int32_t one) { return one < 0; })) return;
  tokens_.resize(batch.num_tokens);
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    std::fill(tokens_.begin() + batch.seq_starts[seq], tokens_.begin() + batch.seq_starts[seq + 1],
              of[seq]);
  }
  for (int32_t l = 0; l < batch.num_logits_rows; ++l) {
    logits_.push_back(tokens_[batch.logits_rows[l]]);
  }
}

void check_adapters(const Model& model, const quire_batch& batch) {
  if (batch.adapter_of == nullptr) return;
  for (int32_t i = 0; i < batch.num_adapters; ++i) {
    if (batch.adapters == nullptr || batch.adapters[i] == nullptr ||
        batch.adapters[i]->adapter.num_matrices() != model.matrices.size()) {
      throw std::invalid_argument("an adapter was made for another model");
    }
  }
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    if (batch.adapter_of[seq] < -1 || batch.adapter_of[seq] >= batch.num_adapters) {
      throw std::invalid_argument("request " + std::to_string(seq) + ": no such adapter");
    }
  }
}

void linear_with_adapters(const Step& step, const ProductRows* products, LinearArgs* args,
                          int64_t count) {
  Pool& pool = step.model.pool;
  if (step.adapters.any()) {
    AdapterScratch& scratch = step.model.adapters;
    plan_all(step, products, args, count);
    const auto units = static_cast<int64_t>(scratch.units.size());
    if (units > 0) {
      pool.run(units, [&](Worker& worker) {
        begin_tiles();
        for (int64_t i; (i = worker.grab_own(units)) < units;) {
          const HiddenUnit& unit = scratch.units[i];
          compute(unit, args[unit.product], scratch);
        }
        end_tiles();
      });
    }
  }
  if (count == 1) return linear(*args, pool);
  linear_together(args, count, pool);
}

}  // namespace quire

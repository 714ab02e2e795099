// Groups the rows of a step by adapter, and computes A x of each group.
#include "adapters/adapter_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "adapters/adapter.h"
#include "runtime/model.h"
#include "simd/dots.h"
#include "simd/vector.h"

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

template <class A, class X>
void compute_as(const HiddenUnit& unit, const RowsOfX& x, const AdapterScratch& scratch) {
  const AdapterWeight& weight = *unit.weight;
  const int64_t end = std::min(unit.first_line + kUnitLines, weight.width);
  const X* from[kUnitRows];
  float* out[kUnitRows];
  for (int64_t i = 0; i < unit.count; ++i) {
    const int64_t row = scratch.rows[unit.first + i];
    from[i] = reinterpret_cast<const X*>(x.row(row));
    out[i] = unit.hidden + row * scratch.width;
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

void compute(const HiddenUnit& unit, const RowsOfX& x, const AdapterScratch& scratch) {
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

// Which rows of a product are changed, and the units of work of their A x. `first_row`: of those of
// all products that run together.
void plan_changes(const Step& step, const ProductRows* products, int64_t index, int64_t m,
                  int64_t first_row) {
  AdapterScratch& scratch = step.model.adapters;
  RowChange* row_changes = scratch.row_changes.data() + first_row;
  auto* hidden = reinterpret_cast<float*>(scratch.hidden->data()) + first_row * scratch.width;
  RowChanges& changes = scratch.changes[index];
  const LowRank** known = scratch.known.data() + index * step.batch.num_adapters;
  changes = {row_changes, known, 0};
  auto first = static_cast<int64_t>(scratch.rows.size());
  list_rows(step, products[index], m, scratch);
  for (int32_t n = 0; n < step.batch.num_adapters; ++n) {
    const int64_t end = scratch.starts[n];
    const AdapterWeight* weight =
        step.batch.adapters[n]->adapter.of_product(products[index].matrix);
    if (weight != nullptr && first < end) {
      known[changes.num_known++] = &weight->change;
      for (int64_t i = first; i < end; ++i) {
        const int32_t row = scratch.rows[i];
        row_changes[row] = {&weight->change, hidden + row * scratch.width,
                            i > first ? scratch.rows[i - 1] : -1,
                            i + 1 < end ? scratch.rows[i + 1] : -1};
      }
    }
    for (; weight != nullptr && first < end; first += kUnitRows) {
      const int64_t count = std::min(kUnitRows, end - first);
      for (int64_t line = 0; line < weight->width; line += kUnitLines) {
        scratch.units.push_back({weight, index, hidden, first, count, line});
      }
    }
    first = end;
  }
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
  int64_t first = 0;
  for (int64_t p = 0; p < count; ++p) {
    const size_t units = scratch.units.size();
    plan_changes(step, products, p, args[p].m, first);
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
      pool.each(units, [&](int64_t unit) {
        compute(scratch.units[unit], RowsOfX(args[scratch.units[unit].product]), scratch);
      });
    }
  }
  if (count == 1) return linear(*args, pool);
  linear_together(args, count, pool);
}

}  // namespace quire

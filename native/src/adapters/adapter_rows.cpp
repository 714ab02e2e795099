// Groups the rows of a step by adapter, and computes A x of each group.
#include "adapters/adapter_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "adapters/adapter.h"
#include "runtime/model.h"
#include "simd/vector.h"

namespace quire {
namespace {

constexpr int64_t kUnitRows = 16;
constexpr int64_t kUnitLines = 8;

std::vector<AdapterGroup> group(const std::vector<const Adapter*>& of_token, const int32_t* tokens,
                                int64_t count) {
  std::vector<AdapterGroup> groups;
  for (int64_t row = 0; row < count; ++row) {
    const Adapter* adapter = of_token[tokens ? tokens[row] : row];
    if (adapter == nullptr) continue;
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const AdapterGroup& one) { return one.adapter == adapter; });
    if (found == groups.end()) found = groups.insert(found, AdapterGroup{adapter, {}});
    found->rows.push_back(static_cast<int32_t>(row));
  }
  return groups;
}

// Rows of x, as a product reads them.
struct RowsOfX {
  const uint8_t* data;
  int32_t dtype;
  int64_t stride_bytes;

  explicit RowsOfX(const LinearArgs& args)
      : data(static_cast<const uint8_t*>(args.x)),
        dtype(static_cast<int32_t>(args.x_dtype)),
        stride_bytes(args.x_stride * (args.x_dtype == DType::kF32 ? 4 : 2)) {}
};

// Rows and lines of A that are multiplied together: as many sums as fit into registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 4;
constexpr int kTileLines = 4;
#else
constexpr int kTileRows = 2;
constexpr int kTileLines = 2;
#endif

template <class T>
QUIRE_INLINE F32x16 load_as(const T* p) {
  if constexpr (sizeof(T) == 4)
    return load_f32(p);
  else
    return load_bf16(p);
}

// Numbers of A x, `rows` and `lines` of them: each is summed along K in the same order always.
template <int kRows, int kLines, class A, class X>
void multiply_tile(const AdapterWeight& weight, const X* const* x, int64_t line,
                   float* const* out) {
  const A* a = reinterpret_cast<const A*>(weight.a.data()) + line * weight.depth;
  F32x16 sums[kRows][kLines] = {};
  const auto add = [&](const F32x16* numbers, int64_t i) {
    for (int l = 0; l < kLines; ++l) {
      const F32x16 own = load_as(a + l * weight.depth + i);
      for (int r = 0; r < kRows; ++r) sums[r][l] = fma(numbers[r], own, sums[r][l]);
    }
  };
  F32x16 numbers[kRows];
  int64_t i = 0;
  for (; i + kLanes <= weight.k; i += kLanes) {
    for (int r = 0; r < kRows; ++r) numbers[r] = load_as(x[r] + i);
    add(numbers, i);
  }
  if (i < weight.k) {
    constexpr int32_t dtype = sizeof(X) == 4 ? QUIRE_F32 : QUIRE_BF16;
    for (int r = 0; r < kRows; ++r) numbers[r] = load_some(x[r], dtype, i, weight.k - i);
    add(numbers, i);
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
  for (; line + kTileLines <= end; line += kTileLines) {
    multiply_tile<kRows, kTileLines, A>(weight, x, line, out);
  }
  for (; line < end; ++line) multiply_tile<kRows, 1, A>(weight, x, line, out);
}

template <class A, class X>
void compute_as(const HiddenUnit& unit, const RowsOfX& x, int64_t first_row,
                const AdapterScratch& scratch) {
  const AdapterWeight& weight = *unit.weight;
  const int64_t end = std::min(unit.first_line + kUnitLines, weight.width);
  auto* hidden = reinterpret_cast<float*>(scratch.hidden.data());
  const X* from[kUnitRows];
  float* out[kUnitRows];
  for (int64_t i = 0; i < unit.count; ++i) {
    const int64_t row = unit.rows[i] - first_row;
    from[i] = reinterpret_cast<const X*>(x.data + row * x.stride_bytes);
    out[i] = hidden + row * scratch.width;
  }
  int64_t i = 0;
  for (; i + kTileRows <= unit.count; i += kTileRows) {
    multiply_lines<kTileRows, A>(weight, from + i, unit.first_line, end, out + i);
  }
  for (; i < unit.count; ++i) multiply_lines<1, A>(weight, from + i, unit.first_line, end, out + i);
}

template <class A>
void compute_with(const HiddenUnit& unit, const RowsOfX& x, int64_t first_row,
                  const AdapterScratch& scratch) {
  if (x.dtype == QUIRE_F32) return compute_as<A, float>(unit, x, first_row, scratch);
  compute_as<A, uint16_t>(unit, x, first_row, scratch);
}

void compute(const HiddenUnit& unit, const RowsOfX& x, int64_t first_row,
             const AdapterScratch& scratch) {
  if (unit.weight->dtype == QUIRE_F32) return compute_with<float>(unit, x, first_row, scratch);
  compute_with<uint16_t>(unit, x, first_row, scratch);
}

// Which rows of a product are changed, and the units of work of their A x. False: none is.
bool plan_changes(const Step& step, int32_t matrix, ProductRows rows, int64_t m) {
  AdapterScratch& scratch = step.model.adapters;
  scratch.units.clear();
  for (const AdapterGroup& one : step.adapters.groups(rows.kind)) {
    const AdapterWeight* weight = one.adapter->of_product(matrix);
    if (weight == nullptr) continue;
    const auto begin = std::lower_bound(one.rows.begin(), one.rows.end(), rows.first);
    const auto end = std::lower_bound(begin, one.rows.end(), rows.first + m);
    if (begin == end) continue;
    if (scratch.units.empty()) scratch.of_row.assign(m, nullptr);
    for (auto row = begin; row != end; ++row) scratch.of_row[*row - rows.first] = &weight->change;
    for (auto row = begin; row != end;) {
      const int64_t count = std::min<int64_t>(kUnitRows, end - row);
      for (int64_t line = 0; line < weight->width; line += kUnitLines) {
        scratch.units.push_back({weight, &*row, count, line});
      }
      row += count;
    }
  }
  return !scratch.units.empty();
}

}  // namespace

AdapterRows::AdapterRows(const quire_batch& batch) {
  if (batch.adapter_of == nullptr || batch.num_adapters == 0) return;
  const int32_t* of = batch.adapter_of;
  if (std::all_of(of, of + batch.num_seqs, [](int32_t one) { return one < 0; })) return;
  of_token_.assign(batch.num_tokens, nullptr);
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    if (of[seq] < 0) continue;
    const Adapter* adapter = &batch.adapters[of[seq]]->adapter;
    std::fill(of_token_.begin() + batch.seq_starts[seq],
              of_token_.begin() + batch.seq_starts[seq + 1], adapter);
  }
  tokens_ = group(of_token_, nullptr, batch.num_tokens);
  logits_ = group(of_token_, batch.logits_rows, batch.num_logits_rows);
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

void linear_with_adapters(const Step& step, int32_t matrix, ProductRows rows, LinearArgs& args) {
  if (step.adapters.any() && plan_changes(step, matrix, rows, args.m)) {
    AdapterScratch& scratch = step.model.adapters;
    const RowsOfX x(args);
    step.model.pool.each(static_cast<int64_t>(scratch.units.size()), [&](int64_t unit) {
      compute(scratch.units[unit], x, rows.first, scratch);
    });
    const auto* hidden = reinterpret_cast<const float*>(scratch.hidden.data());
    scratch.changes = {scratch.of_row.data(), hidden, scratch.width};
    args.changes = &scratch.changes;
  }
  linear(args, step.model.pool);
}

}  // namespace quire

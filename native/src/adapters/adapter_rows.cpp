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
constexpr int64_t kUnitLines = 4;

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

// Numbers of A x of one row: each line is summed along K in the same order always.
template <int kLines>
void multiply_lines(const AdapterWeight& weight, const uint8_t* x, int32_t x_dtype, int64_t line,
                    float* out) {
  const int64_t item = weight.dtype == QUIRE_F32 ? 4 : 2;
  const uint8_t* a = weight.a.data() + line * weight.depth * item;
  F32x16 sums[kLines] = {};
  for (int64_t i = 0; i < weight.k; i += kLanes) {
    const F32x16 numbers = load_some(x, x_dtype, i, weight.k - i);
#pragma GCC unroll 4
    for (int l = 0; l < kLines; ++l) {
      const uint8_t* from = a + l * weight.depth * item;
      sums[l] = fma(numbers, load_some(from, weight.dtype, i, kLanes), sums[l]);
    }
  }
  for (int l = 0; l < kLines; ++l) out[l] = sum_lanes(sums[l]) * weight.scales[line + l];
}

void compute(const HiddenUnit& unit, const RowsOfX& x, int64_t first_row,
             const AdapterScratch& scratch) {
  const AdapterWeight& weight = *unit.weight;
  const int64_t end = std::min(unit.first_line + kUnitLines, weight.width);
  auto* hidden = reinterpret_cast<float*>(scratch.hidden.data());
  for (int64_t i = 0; i < unit.count; ++i) {
    const int64_t row = unit.rows[i] - first_row;
    const uint8_t* from = x.data + row * x.stride_bytes;
    float* out = hidden + row * scratch.width;
    int64_t line = unit.first_line;
    if (end - line == kUnitLines) {
      multiply_lines<kUnitLines>(weight, from, x.dtype, line, out + line);
      continue;
    }
    for (; line < end; ++line) multiply_lines<1>(weight, from, x.dtype, line, out + line);
  }
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

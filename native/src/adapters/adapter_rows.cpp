// Groups the rows of a step by adapter, for the products with A and those with B.
#include "adapters/adapter_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "adapters/adapter.h"
#include "adapters/hidden.h"
#include "runtime/model.h"

namespace quire {
namespace {

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
    compute_hidden(scratch, args, pool);
  }
  if (count == 1) return linear(*args, pool);
  linear_together(args, count, pool);
}

}  // namespace quire

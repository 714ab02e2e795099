// Which rows of a step have which adapter, and the memory of what they compute.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear/linear.h"
#include "quire.h"
#include "runtime/memory.h"

namespace quire {

struct AdapterWeight;

// Which adapter each row of a step has, as an index of the batch's adapters; -1: none. Empty if no
// request has one.
class AdapterRows {
 public:
  explicit AdapterRows(const quire_batch& batch);

  bool any() const { return !tokens_.empty(); }
  int32_t of_token(int64_t token) const { return any() ? tokens_[token] : -1; }
  // `rows`: quire_rows.
  const std::vector<int32_t>& of(int32_t rows) const {
    return rows == QUIRE_ROWS_TOKENS ? tokens_ : logits_;
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> logits_;
};

// A product's matrix, and which rows of the step its rows are.
struct ProductRows {
  int32_t matrix;
  int32_t kind;          // quire_rows
  int64_t first;         // the row of the step from which rows are counted
  const int32_t* which;  // [m]; null: row after row
};

// A piece of the products of rows with A: a few rows of one adapter, and a few lines of A.
struct HiddenUnit {
  const AdapterWeight* weight;
  int64_t product;
  int64_t first;  // of `AdapterScratch::rows`
  int64_t count;
  int64_t first_line;  // on tiles, the number of a chunk
};

// Memory for the changes of the products that run together.
struct AdapterScratch {
  // `width`: most numbers of A x of a row, the rank of each part rounded up to 16.
  explicit AdapterScratch(int64_t width) : row_bytes(kGroupRows * width * 4) {}

  // A x of the rows of a tile with the same adapter begins at the place of the first of them, and
  // has the numbers of each part rounded up to 32.
#if defined(__AMX_BF16__)
  static constexpr int64_t kGroupRows = 16;
#else
  static constexpr int64_t kGroupRows = 1;
#endif
  static int64_t bytes_of(const LowRank& by) { return by.width * (by.on_tiles ? 32 : 4); }

  // `max_rows`: of all products that run together.
  void reserve(int64_t max_rows) { hidden = std::make_unique<Reservation>(max_rows * row_bytes); }
  int64_t most_bytes() const { return hidden ? hidden->most_bytes() : 0; }

  const int64_t row_bytes;              // for A x of a row
  std::unique_ptr<Reservation> hidden;  // of all rows of one product, then of the next
  std::vector<RowChange> row_changes;   // likewise
  std::vector<TileChange> tile_changes;
  std::vector<int32_t> tile_starts;   // of each product, those of its tiles
  std::vector<const LowRank*> known;  // of each product, one for each adapter
  std::vector<RowChanges> changes;    // of each product
  std::vector<int32_t> rows;          // of a product, those of one adapter together
  std::vector<int64_t> starts;        // of each adapter's rows
  std::vector<HiddenUnit> units;
};

}  // namespace quire

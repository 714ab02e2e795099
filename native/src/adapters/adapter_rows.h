// Which rows of a step have which adapter, and the memory of what they compute.
#pragma once

#include <cstdint>
#include <vector>

#include "linear/linear.h"
#include "quire.h"
#include "runtime/memory.h"

namespace quire {

class Adapter;
struct AdapterWeight;

// Rows of one adapter, ascending.
struct AdapterGroup {
  const Adapter* adapter;
  std::vector<int32_t> rows;
};

// The rows of a step by adapter. Empty if no request has one.
class AdapterRows {
 public:
  explicit AdapterRows(const quire_batch& batch);

  bool any() const { return !of_token_.empty(); }
  const Adapter* of_token(int64_t token) const { return any() ? of_token_[token] : nullptr; }
  // `rows`: quire_rows.
  const std::vector<AdapterGroup>& groups(int32_t rows) const {
    return rows == QUIRE_ROWS_TOKENS ? tokens_ : logits_;
  }

 private:
  std::vector<const Adapter*> of_token_;
  std::vector<AdapterGroup> tokens_;
  std::vector<AdapterGroup> logits_;
};

// A piece of the products of rows with A: a few rows of one adapter, and a few lines of A.
struct HiddenUnit {
  const AdapterWeight* weight;
  const int32_t* rows;
  int64_t count;
  int64_t first_line;
};

// Memory for the changes of one product at a time.
struct AdapterScratch {
  AdapterScratch(int64_t max_rows, int64_t width_)
      : width(width_), hidden(max_rows * width_ * sizeof(float)) {}

  int64_t most_bytes() const { return width > 0 ? hidden.most_bytes() : 0; }

  const int64_t width;
  Reservation hidden;
  std::vector<const LowRank*> of_row;
  std::vector<HiddenUnit> units;
  RowChanges changes{};
};

}  // namespace quire

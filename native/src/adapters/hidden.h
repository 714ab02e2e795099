// A x of the rows of a step.
#pragma once

#include <cstdint>

#include "adapters/adapter_rows.h"
#include "linear/linear.h"
#include "threads/pool.h"

namespace quire {

// Rows and lines of A in a unit of work on vectors.
constexpr int64_t kUnitRows = 16;
constexpr int64_t kUnitLines = 8;

// Computes all units of the scratch. `args`: the products that run together.
void compute_hidden(const AdapterScratch& scratch, const LinearArgs* args, Pool& pool);

}  // namespace quire

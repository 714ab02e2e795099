// From raw sums to outputs: scale, bias, activation, gate, residual, rounding.
//
// Called by the driver for each strip while its sums are still in the nearest cache. One function
// serves every row of every product, so that an element goes through the same operations always.
#pragma once

#include "linear/family.h"

namespace quire::gemm {

// Finishes rows `row0 .. row0 + rows - 1` of one strip. `sums` is [rows][32].
void finish_strip(const LinearArgs& args, int64_t strip, int64_t row0, int64_t rows,
                  const float* sums);

}  // namespace quire::gemm

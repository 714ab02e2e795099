// One row of a packed matrix, unpacked: the embedding lookup of a tied head, which then needs no
// second copy of the table.
#pragma once

#include <cstdint>

#include "linear/linear.h"

namespace quire {

// Writes the k numbers of row `row` to `out`.
void unpack_row(const PackedMatrix& matrix, int64_t row, float* out);

}  // namespace quire

// Distributes the rows of row-wise ops over the threads of the pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/model.h"

namespace quire {

// Minimum number of elements that a worker takes at a time: sharing smaller pieces costs more than
// computing them. Long steps have larger pieces, kPiecesEach for each worker.
constexpr int64_t kGrainElements = 4096;
constexpr int64_t kPiecesEach = 32;

// Calls body(span) for spans that together cover all rows, on several threads.
template <class Body>
void by_rows(const Step& step, int64_t rows, int64_t width, Body&& body) {
  Pool& pool = step.model.pool;
  const int64_t least = std::max<int64_t>(1, kGrainElements / width);
  pool.spans(rows, std::max(least, rows / (kPiecesEach * pool.size())), body);
}

}  // namespace quire

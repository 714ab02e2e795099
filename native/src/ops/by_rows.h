// How ops that treat each row on its own share their rows over the pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/model.h"

namespace quire {

// Elements of a row-wise op that one worker handles at a time, at least: smaller pieces cost more
// to share than to do. Long steps have larger pieces, so many for each worker.
constexpr int64_t kGrainElements = 4096;
constexpr int64_t kPiecesEach = 32;

// Calls body(span of rows) for all of them, on several threads.
template <class Body>
void by_rows(const Step& step, int64_t rows, int64_t width, Body&& body) {
  Pool& pool = step.model.pool;
  const int64_t least = std::max<int64_t>(1, kGrainElements / width);
  pool.spans(rows, std::max(least, rows / (kPiecesEach * pool.size())), body);
}

}  // namespace quire

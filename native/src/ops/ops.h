// The ops other than linear and attention. Each shares its rows over the model's pool, and is done
// when it returns.
#pragma once

#include <algorithm>

#include "quire.h"
#include "runtime/model.h"

namespace quire {

void embed(const Step& step, const quire_embed& op);
void learned_positions(const Step& step, const quire_positions& op);
void norm(const Step& step, const quire_norm& op, int32_t rows);
void heads(const Step& step, const quire_heads& op);
void pointwise(const Step& step, const quire_pointwise& op, int32_t rows);
void take_rows(const Step& step, const quire_take_rows& op);

// Elements of a row-wise op that one worker handles at a time, at least: smaller pieces cost more
// to share than to do. Long steps have larger pieces, so many for each worker.
constexpr int64_t kGrainElements = 4096;
constexpr int64_t kPiecesEach = 32;

// Shares the rows of an op that treats each on its own: body(span of rows).
template <class Body>
void by_rows(const Step& step, int64_t rows, int64_t width, Body&& body) {
  Pool& pool = step.model.pool;
  const int64_t least = std::max<int64_t>(1, kGrainElements / width);
  pool.spans(rows, std::max(least, rows / (kPiecesEach * pool.size())), body);
}

// Logits of the wanted rows in slabs, and the choice of their tokens.
void logits(const Step& step, const quire_logits& op);

}  // namespace quire

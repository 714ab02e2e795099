// The ops other than linear and attention. Each is called by every worker of the region and returns
// without a barrier: the step executor puts one between ops.
#pragma once

#include "quire.h"
#include "runtime/model.h"

namespace quire {

void embed(const Step& step, const quire_embed& op, Worker& worker);
void learned_positions(const Step& step, const quire_positions& op, Worker& worker);
void norm(const Step& step, const quire_norm& op, int32_t rows, Worker& worker);
void heads(const Step& step, const quire_heads& op, Worker& worker);
void pointwise(const Step& step, const quire_pointwise& op, int32_t rows, Worker& worker);
void take_rows(const Step& step, const quire_take_rows& op, Worker& worker);

// Logits of the wanted rows in slabs, and the choice of their tokens. Ends with a barrier.
void logits(const Step& step, const quire_logits& op, Worker& worker);

}  // namespace quire

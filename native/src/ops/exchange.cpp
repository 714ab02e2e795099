// Completes a value of which each rank has a part, or passes one between stages.
#include "ops/kernel.h"

namespace quire {
namespace {

int64_t bytes_of_row(const quire_view& view) {
  return view.stride * (view.dtype == QUIRE_F32 ? 4 : 2);
}

void check_gather(const OpChecks&, const quire_gather&) {}
void check_pass(const OpChecks&, const quire_pass&) {}

void run_gather(const Step& step, const quire_gather& op, int32_t rows) {
  step.model.ranks.complete(op.exchange, step.row(op.out, 0), step.rows(rows),
                            bytes_of_row(op.out));
}

void run_pass(const Step& step, const quire_pass& op, int32_t rows) {
  step.model.ranks.pass(op.exchange, step.row(op.value, 0), step.rows(rows),
                        bytes_of_row(op.value));
}

void look_at_pass(FiniteWatch& watch, const quire_pass& op, int32_t rows) {
  watch.look_at_rows(op.value, rows);
}

const OpRegistration kGather(op_kind<quire_gather, check_gather, run_gather>());
const OpRegistration kPass(op_kind<quire_pass, check_pass, run_pass, look_at_pass>());

}  // namespace
}  // namespace quire

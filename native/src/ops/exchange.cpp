// Completes a value of which each rank has a part, or passes one between stages.
#include "ops/op_checks.h"
#include "ops/op_kind.h"
#include "runtime/finite_watch.h"

namespace quire {
namespace {

void check_exchange(const OpChecks& checks, const quire_op& op) {
  const quire_exchange& exchange = op.u.exchange;
  checks.view(exchange.value);
  checks.require(exchange.kind == QUIRE_EXCHANGE_RANKS || exchange.kind == QUIRE_EXCHANGE_STAGES,
                 "kind");
  checks.require(exchange.number >= 0, "number");
}

void run_exchange(const Step& step, const quire_op& op) {
  const quire_exchange& exchange = op.u.exchange;
  const int64_t rows = step.rows(op.rows);
  const int64_t row_bytes = exchange.value.stride * (exchange.value.dtype == QUIRE_F32 ? 4 : 2);
  RankExchange& ranks = step.model.ranks;
  uint8_t* data = step.row(exchange.value, 0);
  if (exchange.kind == QUIRE_EXCHANGE_RANKS) {
    ranks.complete(exchange.number, data, rows, row_bytes);
  } else {
    ranks.pass(exchange.number, data, rows, row_bytes);
  }
}

void look_at_exchange(FiniteWatch& watch, const quire_op& op) {
  watch.look_at_rows(op.u.exchange.value, op.rows);
}

const OpRegistration kExchange({QUIRE_OP_EXCHANGE, "exchange", check_exchange, run_exchange,
                                look_at_exchange, nullptr});

}  // namespace
}  // namespace quire

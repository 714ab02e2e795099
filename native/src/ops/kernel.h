// Defines a kind of op by functions over the op's own struct. Included by the ops' kernels.
#pragma once

#include <cstdint>

#include "ops/by_rows.h"
#include "ops/op_checks.h"
#include "ops/op_kind.h"
#include "op_traits.h"
#include "runtime/finite_watch.h"

namespace quire {

// The default of `look`.
template <class Op>
void look_at_out(FiniteWatch& watch, const Op& op, int32_t rows) {
  watch.look_at_rows(op.out, rows);
}

// The functions of `OpKind`. `check` is called after the checks that follow from the declaration;
// `run` and `look` are called with the op's rows (quire_rows). `look`, `reserve`: may be null.
template <class Op, void (*check)(const OpChecks&, const Op&),
          void (*run)(const Step&, const Op&, int32_t),
          void (*look)(FiniteWatch&, const Op&, int32_t) = look_at_out<Op>,
          void (*reserve)(const Model&, const Op&, OpNeeds&) = nullptr>
OpKind op_kind(bool is_last = false) {
  using Traits = OpTraits<Op>;
  OpKind kind = {Traits::kId, Traits::kName};
  kind.check = [](const OpChecks& checks, const quire_op& op) {
    Traits::check(checks, Traits::of(op));
    check(checks, Traits::of(op));
  };
  kind.run = [](const Step& step, const quire_op& op) { run(step, Traits::of(op), op.rows); };
  if constexpr (look != nullptr) {
    kind.look = [](FiniteWatch& watch, const quire_op& op) {
      look(watch, Traits::of(op), op.rows);
    };
  }
  if constexpr (reserve != nullptr) {
    kind.reserve = [](const Model& model, const quire_op& op, OpNeeds& needs) {
      reserve(model, Traits::of(op), needs);
    };
  }
  kind.is_last = is_last;
  return kind;
}

}  // namespace quire

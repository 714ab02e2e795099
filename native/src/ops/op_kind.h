// OpKind: the executor's interface to a kind of op. The record is defined next to the op's kernel, by
// kernel.h.
//
// When ops are set, model.cpp looks up the kind of each op, checks the op and reserves memory for
// it; step.cpp and finite_watch.cpp call the functions of the record.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire.h"

namespace quire {

class FiniteWatch;
class OpChecks;
struct Model;
struct Step;

// Memory and sizes that the ops of a model need in addition to their values: the maximum over ops.
struct OpNeeds {
  size_t scratch_bytes = 64;    // of products, which run one after the other
  size_t logits_bytes = 0;      // of the logits that exist at once
  size_t hidden_bytes = 0;      // inside experts, where ranks have columns of it
  int64_t product_rows = 0;     // of products that run together
  int64_t num_token_ids = 0;    // rows of the smallest table that token ids are looked up in
  int64_t num_token_types = INT32_MAX;  // rows of the smallest table of token types
  int32_t num_query_heads = 0;  // of the attention ops, which all have the same; 0: there is none
};

struct OpKind {
  int32_t id;        // quire_op_kind
  const char* name;  // in messages
  // Throws std::invalid_argument unless the op's views, weights and numbers fit the model.
  void (*check)(const OpChecks& checks, const quire_op& op) = nullptr;
  // Runs the op on the threads of the model's pool, and returns when it is complete.
  void (*run)(const Step& step, const quire_op& op) = nullptr;
  // Checks the values that the op has computed. Null: there is nothing to check.
  void (*look)(FiniteWatch& watch, const quire_op& op) = nullptr;
  // Adds what the op needs. Null: nothing. Called after `check`.
  void (*reserve)(const Model& model, const quire_op& op, OpNeeds& needs) = nullptr;
  bool is_last = false;  // whether the op must be the last op of a model
};

// Puts a kind into the table. There is one static object for each, made when the library loads.
class OpRegistration {
 public:
  explicit OpRegistration(const OpKind& kind);
};

// The kind with this number (quire_op_kind), or null.
const OpKind* find_op_kind(int32_t id);

}  // namespace quire

// A compiled model: weights, KV cache, workspace and the flat list of ops; and what one step adds.
//
// Built by abi.cpp from what Python lowered; run by step.cpp. Owned by one caller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "adapters/adapter_rows.h"
#include "attention/attention.h"
#include "linear/linear.h"
#include "ops/op_kind.h"
#include "ops/rope_table.h"
#include "quire.h"
#include "runtime/kv_cache.h"
#include "runtime/memory.h"
#include "runtime/rank_exchange.h"
#include "sampling/sampler.h"
#include "threads/pool.h"

namespace quire {

struct Table {
  const uint8_t* data;
  int64_t rows;
  int64_t width;
  int32_t dtype;

  int64_t row_bytes() const { return width * (dtype == QUIRE_F32 ? 4 : 2); }
};

using Vector = std::vector<float>;

// Adjacent tokens of one request within one group of 16 positions: the unit in which K and V are
// written, so that no two workers touch the same piece of the cache.
struct TokenRun {
  int32_t first;  // token index
  int32_t count;
  int32_t seq;
};

// An op as it was set, and what the executor does with it.
struct ModelOp {
  quire_op op;
  const OpKind* kind;
};

struct Model {
  Model(Pool& pool_, const quire_model_spec& spec_);

  Pool& pool;
  const quire_model_spec spec;
  KvCache kv;
  Reservation workspace;
  RankExchange ranks;
  int64_t weight_bytes = 0;  // of tables, matrices and vectors
  std::vector<Table> tables;
  std::vector<Vector> vectors;
  std::vector<PackedMatrix> matrices;
  std::vector<RopeTable> ropes;
  std::vector<ModelOp> ops;
  int32_t num_query_heads = 0;  // of every attention
  int64_t num_token_types = 0;
  int64_t num_token_ids = 0;  // the head may be larger than the table, or smaller
  std::unique_ptr<Reservation> linear_scratch;
  std::unique_ptr<Reservation> logits;  // one slab of float32 rows
  AdapterScratch adapters;
  std::unique_ptr<Reservation> hidden;  // of experts, where ranks have columns of it
  AttentionScratch attention;
  std::vector<Sampler> samplers;  // one per worker

  // Maximum memory of steps, in addition to weights and KV cache. Valid once the ops are set.
  int64_t workspace_bytes() const;

  bool profiling = false;
  int64_t profiled_steps = 0;
  std::vector<double> op_seconds;
};

// The most rows of a step whose logits may be wanted.
int64_t max_logits_rows(const quire_model_spec& spec);

// One step in progress: the model, its input and output, and what is derived from them once.
struct Step {
  Model& model;
  const quire_batch& batch;
  const quire_output& output;
  std::vector<TokenRun> runs;
  AttentionPlans attention;
  AttentionPlans taken_attention;  // of the rows whose logits are wanted, if not of all
  AdapterRows adapters;

  bool takes_all() const { return batch.num_logits_rows == batch.num_tokens; }
  const AttentionPlan& plan_of(const quire_attention& op) const {
    return (op.taken_only && !takes_all() ? taken_attention : attention).of(op.kv.layer_group);
  }
  int64_t rows(int32_t kind) const {
    return kind == QUIRE_ROWS_TOKENS ? batch.num_tokens : batch.num_logits_rows;
  }
  // Row r of a value; the views were checked against the workspace when the ops were set.
  uint8_t* row(const quire_view& view, int64_t r) const {
    const int64_t item = view.dtype == QUIRE_F32 ? 4 : 2;
    return model.workspace.data() + view.offset + r * view.stride * item;
  }
  int64_t row_bytes(const quire_view& view) const {
    return view.dim * int64_t{view.dtype == QUIRE_F32 ? 4 : 2};
  }
  float* f32_row(const quire_view& view, int64_t r) const {
    return reinterpret_cast<float*>(row(view, r));
  }
  const float* vector(int32_t id) const { return id < 0 ? nullptr : model.vectors[id].data(); }
  // A request's blocks for the layers of a group.
  const int32_t* block_table(int32_t seq, int32_t layer_group) const {
    const int64_t row = int64_t{seq} * model.kv.num_layer_groups() + layer_group;
    return batch.block_tables + row * batch.table_width;
  }
};

// Adds a packed table or matrix, whose memory the caller keeps, or a copy of a vector. Returns the
// new id. Throws on bad sizes.
int32_t add_table(Model& model, const quire_table_spec& spec, const void* data);
int32_t add_matrix(Model& model, const quire_matrix_spec& spec, const void* data);
int32_t add_vector(Model& model, const float* values, int64_t size);

// Checks every index and view of the ops against the model, then takes them over.
void set_ops(Model& model, const quire_op* ops, int32_t num_ops);

// Checks the batch, then runs the ops over it, each on the threads of the pool.
void run_step(Model& model, const quire_batch& batch, const quire_output& output);

// Chooses a token from each row of `logits`, as quire_sample says.
void sample_rows(Model& model, const quire_sampling& sampling, int32_t num_rows, float* logits,
                 const quire_output& output);

// Runs all ops but the logits again; `first_ops`, for each request, as quire_find_not_finite says.
void find_not_finite(Model& model, const quire_batch& batch, int32_t* first_ops);

}  // namespace quire

#include "runtime/model.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "attention/kv_write.h"
#include "ops/op_checks.h"

namespace quire {
namespace {

constexpr int32_t kMaxLatentDim = 4096;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

quire_model_spec checked(const quire_model_spec& spec) {
  const quire_kv_spec& kv = spec.kv;
  require(kv.num_slots >= 1 && kv.num_blocks >= 1, "a KV cache has at least one slot and block");
  require(kv.num_layer_groups >= 1 && kv.num_layer_groups <= kMaxLayerGroups,
          "a KV cache has 1 to 16 layer groups");
  require(kv.least_block_bytes >= 0, "the least size of a block is negative");
  for (int32_t g = 0; g < kv.num_layer_groups; ++g) {
    require(kv.windows[g] >= 0, "the window of a layer group is negative");
    require(kv.state_blocks[g] >= 0, "the blocks of a state are negative");
    if (kv.state_blocks[g] > 0) {
      require(kv.num_kv_heads[g] == 0 && kv.key_dim[g] == 0 && kv.value_dim[g] == 0,
              "a layer group with a state has no heads");
      continue;
    }
    require(kv.num_kv_heads[g] >= 1, "a layer group has at least one kv head");
    if (kv.value_dim[g] == 0) {
      require(kv.num_kv_heads[g] == 1 && kv.key_dim[g] >= 1 && kv.key_dim[g] <= kMaxLatentDim,
              "a latent layer group has one head of at most 4096 numbers");
      require(kv.dtype != QUIRE_INT4, "a latent layer group is not stored in 4 bits");
      continue;
    }
    for (const int32_t dim : {kv.key_dim[g], kv.value_dim[g]}) {
      require(dim >= 1 && dim <= kMaxHeadDim, "head_dim is not from 1 to 512");
    }
  }
  require(kv.block_size >= kGroup && kv.block_size % kGroup == 0,
          "block_size is not a multiple of 16");
  require(kv.dtype == QUIRE_F32 || kv.dtype == QUIRE_BF16 || kv.dtype == QUIRE_INT8 ||
              kv.dtype == QUIRE_INT4,
          "unknown KV cache dtype");
  require(spec.ranks.shared_offset >= 0 && spec.ranks.shared_offset <= spec.workspace_bytes,
          "exchanged values lie outside the workspace");
  require(spec.workspace_bytes >= 0 && spec.max_num_tokens >= 1 && spec.max_num_seqs >= 1 &&
              spec.max_model_len >= 1 && spec.vocab_size >= 1,
          "a limit of the model is not positive");
  require(spec.max_adapter_width >= 0, "the width of adapters is negative");
  return spec;
}

const OpKind* checked_kind(const Model& model, const quire_op& op, bool last) {
  require(op.rows == QUIRE_ROWS_TOKENS || op.rows == QUIRE_ROWS_LOGITS, "op: unknown rows");
  const OpKind* kind = find_op_kind(op.kind);
  require(kind == nullptr || !kind->is_last || last,
          "ops: logits or vectors must be the last op");
  require(kind != nullptr, "op: unknown kind");
  kind->check(OpChecks(model, kind->name, op.rows), op);
  return kind;
}

}  // namespace

int64_t max_logits_rows(const quire_model_spec& spec) { return spec.max_num_tokens; }

Model::Model(Pool& pool_, const quire_model_spec& spec_)
    : pool(pool_),
      spec(checked(spec_)),
      kv(spec.kv),
      workspace(spec.workspace_bytes),
      ranks(spec.ranks, workspace.data(), spec.workspace_bytes - spec.ranks.shared_offset),
      adapters(spec.max_adapter_width),
      attention(kv.layouts, pool.size()) {
  samplers.reserve(pool.size());
  for (int i = 0; i < pool.size(); ++i) samplers.emplace_back(spec.vocab_size);
}

int64_t Model::workspace_bytes() const {
  int64_t bytes = workspace.most_bytes() + attention.most_bytes() + adapters.most_bytes();
  if (linear_scratch) bytes += linear_scratch->most_bytes();
  if (logits) bytes += logits->most_bytes();
  if (hidden) bytes += hidden->most_bytes();
  for (const RopeTable& rope : ropes) bytes += rope.most_bytes();
  for (const Sampler& sampler : samplers) bytes += sampler.most_bytes();
  return bytes;
}

void set_ops(Model& model, const quire_op* ops, int32_t num_ops) {
  require(num_ops >= 1, "a model has at least one op");
  std::vector<ModelOp> checked_ops;
  OpNeeds needs;
  needs.num_token_ids = model.spec.vocab_size;
  needs.product_rows = model.spec.max_num_tokens;
  for (int32_t i = 0; i < num_ops; ++i) {
    const OpKind* kind = checked_kind(model, ops[i], i + 1 == num_ops);
    if (kind->reserve != nullptr) kind->reserve(model, ops[i], needs);
    checked_ops.push_back({ops[i], kind});
  }
  model.ops = std::move(checked_ops);
  model.op_seconds.assign(num_ops, 0.0);
  model.num_query_heads = needs.num_query_heads;
  model.num_token_ids = needs.num_token_ids;
  model.num_token_types = needs.num_token_types;
  // An encoder has other ops for each piece of a step: fresh pages would be cleared each time.
  if (!model.linear_scratch || model.linear_scratch->size() < needs.scratch_bytes) {
    model.linear_scratch = std::make_unique<Reservation>(needs.scratch_bytes);
  }
  model.adapters.reserve(needs.product_rows);
  model.logits = model.ranks.reserve(needs.logits_bytes);
  model.hidden = model.ranks.reserve(needs.hidden_bytes);
}

}  // namespace quire

#include "runtime/model.h"

#include <algorithm>
#include <stdexcept>

#include "attention/kv_write.h"

namespace quire {
namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

quire_model_spec checked(const quire_model_spec& spec) {
  const quire_kv_spec& kv = spec.kv;
  require(kv.num_slots >= 1 && kv.num_kv_heads >= 1 && kv.num_blocks >= 1,
          "a KV cache has at least one slot, head and block");
  require(kv.num_layer_groups >= 1 && kv.num_layer_groups <= kMaxLayerGroups,
          "a KV cache has 1 to 16 layer groups");
  for (int32_t g = 0; g < kv.num_layer_groups; ++g) {
    require(kv.windows[g] >= 0, "the window of a layer group is negative");
  }
  require(kv.block_size >= kGroup && kv.block_size % kGroup == 0,
          "block_size is not a multiple of 16");
  require(kv.head_dim >= 1 && kv.head_dim <= kMaxHeadDim, "head_dim is not from 1 to 512");
  require(kv.dtype == QUIRE_F32 || kv.dtype == QUIRE_BF16 || kv.dtype == QUIRE_INT8,
          "unknown KV cache dtype");
  require(spec.workspace_bytes >= 0 && spec.max_num_tokens >= 1 && spec.max_num_seqs >= 1 &&
              spec.max_model_len >= 1 && spec.vocab_size >= 1,
          "a limit of the model is not positive");
  return spec;
}

// Checks the ops of one model one by one.
class OpChecker {
 public:
  explicit OpChecker(const Model& model) : model_(model) {}

  void check(const quire_op& op, bool last) {
    require(op.rows == QUIRE_ROWS_TOKENS || op.rows == QUIRE_ROWS_LOGITS, "op: unknown rows");
    require((op.kind == QUIRE_OP_LOGITS) == last, "ops: logits must be the last op, and only it");
    rows_ = op.rows;
    switch (op.kind) {
      case QUIRE_OP_EMBED:
        return embed(op.u.embed);
      case QUIRE_OP_POSITIONS:
        return positions(op.u.positions);
      case QUIRE_OP_NORM:
        return norm(op.u.norm);
      case QUIRE_OP_LINEAR:
        return linear(op.u.linear);
      case QUIRE_OP_HEADS:
        return heads(op.u.heads);
      case QUIRE_OP_ATTENTION:
        return attention(op.u.attention);
      case QUIRE_OP_POINTWISE:
        return pointwise(op.u.pointwise);
      case QUIRE_OP_TAKE_ROWS:
        require(op.u.take_rows.x.dim == op.u.take_rows.out.dim, "take_rows: dims differ");
        view(op.u.take_rows.x, QUIRE_ROWS_TOKENS);
        return view(op.u.take_rows.out, QUIRE_ROWS_LOGITS);
      case QUIRE_OP_LOGITS:
        return logits(op.u.logits);
      default:
        require(false, "op: unknown kind");
    }
  }

 private:
  void view(const quire_view& v, int32_t rows) const {
    require(v.dtype == QUIRE_F32 || v.dtype == QUIRE_BF16, "view: unknown dtype");
    require(v.dim >= 1 && v.stride >= v.dim && v.offset >= 0, "view: bad shape");
    const int64_t count =
        rows == QUIRE_ROWS_TOKENS ? model_.spec.max_num_tokens : max_logits_rows(model_.spec);
    const int64_t item = v.dtype == QUIRE_F32 ? 4 : 2;
    const int64_t end = v.offset + ((count - 1) * v.stride + v.dim) * item;
    require(end <= model_.spec.workspace_bytes, "view: outside the workspace");
  }
  void view(const quire_view& v) const { view(v, rows_); }
  void optional_view(const quire_view& v) const {
    if (v.offset >= 0) view(v);
  }
  void vector(int32_t id, int64_t size) const {
    if (id < 0) return;
    require(id < static_cast<int32_t>(model_.vectors.size()), "op: no such vector");
    require(static_cast<int64_t>(model_.vectors[id].size()) == size, "op: vector of another size");
  }
  const PackedMatrix& matrix(int32_t id) const {
    require(id >= 0 && id < static_cast<int32_t>(model_.matrices.size()), "op: no such matrix");
    return model_.matrices[id];
  }
  const Table& table(int32_t id) const {
    require(id >= 0 && id < static_cast<int32_t>(model_.tables.size()), "op: no such table");
    return model_.tables[id];
  }

  void kv_place(const quire_kv_place& place) const {
    require(place.layer_group >= 0 && place.layer_group < model_.kv.num_layer_groups(),
            "op: no such layer group");
    require(place.slot >= 0 && place.slot < model_.kv.layout.num_slots, "op: no such slot");
  }

  void embed(const quire_embed& op) const {
    view(op.out);
    require(op.out.dtype == QUIRE_F32, "embed: out is not float32");
    const int64_t rows = op.matrix >= 0 ? matrix(op.matrix).n : table(op.table).rows;
    const int64_t width = op.matrix >= 0 ? matrix(op.matrix).k : table(op.table).width;
    require(op.matrix < 0 || !matrix(op.matrix).glu, "embed: a glu matrix is no table");
    require(width == op.out.dim && rows >= 1, "embed: table of another shape");
  }
  void positions(const quire_positions& op) const {
    view(op.x);
    view(op.out);
    const Table& rows = table(op.table);
    require(op.x.dim == op.out.dim && rows.width == op.out.dim, "positions: dims differ");
    require(op.offset >= 0 && model_.spec.max_model_len + int64_t{op.offset} <= rows.rows,
            "positions: the table is shorter than max_model_len");
  }
  void norm(const quire_norm& op) const {
    view(op.x);
    view(op.out);
    optional_view(op.residual);
    vector(op.weight, op.x.dim);
    vector(op.bias, op.x.dim);
    require(op.x.dim == op.out.dim, "norm: dims differ");
  }
  void linear(const quire_linear& op) const {
    const PackedMatrix& weight = matrix(op.matrix);
    view(op.x);
    view(op.out);
    optional_view(op.residual);
    vector(op.bias, weight.n);
    require(op.x.dim == weight.k, "linear: x is not as wide as the weight");
    require(op.out.dim == (weight.glu ? weight.n / 2 : weight.n), "linear: out has another width");
    require(op.residual.offset < 0 || op.residual.dtype == QUIRE_F32,
            "linear: the residual is not float32");
  }
  void heads(const quire_heads& op) const {
    require(op.num_parts >= 1 && op.num_parts <= 3, "heads: not 1 to 3 parts");
    require(op.head_dim >= 1 && op.head_dim <= kMaxHeadDim, "heads: head_dim");
    kv_place(op.kv);
    for (int32_t p = 0; p < op.num_parts; ++p) part(op, op.parts[p]);
  }
  void part(const quire_heads& op, const quire_heads_part& part) const {
    view(part.x);
    require(part.num_heads >= 1 && int64_t{part.num_heads} * op.head_dim == part.x.dim,
            "heads: x is not num_heads * head_dim wide");
    vector(part.norm, op.head_dim);
    if (part.rope >= 0) {
      require(part.rope < static_cast<int32_t>(model_.ropes.size()), "heads: no such rope");
      require(2 * model_.ropes[part.rope].num_freqs() <= op.head_dim, "heads: rope too wide");
    }
    if (part.target == QUIRE_TO_VIEW) {
      view(part.out);
      require(part.out.dim == part.x.dim, "heads: dims differ");
    } else {
      require(part.target == QUIRE_TO_KEYS || part.target == QUIRE_TO_VALUES, "heads: target");
      require(part.num_heads == model_.spec.kv.num_kv_heads &&
                  op.head_dim == model_.spec.kv.head_dim && rows_ == QUIRE_ROWS_TOKENS,
              "heads: not the cache's shape");
    }
  }
  void attention(const quire_attention& op) const {
    const quire_kv_spec& kv = model_.spec.kv;
    view(op.q);
    view(op.out);
    require(rows_ == QUIRE_ROWS_TOKENS, "attention: works on all tokens");
    kv_place(op.kv);
    const int32_t kept = model_.kv.windows[op.kv.layer_group];
    require(kept == 0 || (op.window > 0 && op.window <= kept),
            "attention: sees more than its layer group keeps");
    require(op.num_heads >= 1 && op.num_heads % kv.num_kv_heads == 0,
            "attention: num_heads is no multiple of the kv heads");
    require(op.q.dim == int64_t{op.num_heads} * kv.head_dim && op.out.dim == op.q.dim,
            "attention: q or out has another width");
    require(op.scale > 0 && op.softcap >= 0 && op.window >= 0, "attention: scale, cap or window");
    require(op.activation_bits == 8 || op.activation_bits == 16, "attention: activation bits");
    require(op.taken_only == 0 || op.taken_only == 1, "attention: taken_only");
    vector(op.alibi, op.num_heads);
  }
  void pointwise(const quire_pointwise& op) const {
    const bool binary = op.kind == QUIRE_POINTWISE_ADD || op.kind == QUIRE_POINTWISE_GLU;
    require(op.kind >= QUIRE_POINTWISE_ADD && op.kind <= QUIRE_POINTWISE_SCALE, "pointwise: kind");
    require(op.activation >= QUIRE_ACT_NONE && op.activation <= QUIRE_ACT_RELU,
            "pointwise: activation");
    view(op.a);
    view(op.out);
    optional_view(op.b);
    require(!binary || op.b.offset >= 0, "pointwise: b is missing");
    require(op.a.dim == op.out.dim && (!binary || op.b.dim == op.out.dim),
            "pointwise: dims differ");
  }
  void logits(const quire_logits& op) const {
    const PackedMatrix& head = matrix(op.matrix);
    view(op.x, QUIRE_ROWS_LOGITS);
    vector(op.bias, head.n);
    require(op.x.dim == head.k && head.n == model_.spec.vocab_size && !head.glu,
            "logits: the head has another shape");
  }

  const Model& model_;
  int32_t rows_ = 0;
};

}  // namespace

int64_t max_logits_rows(const quire_model_spec& spec) { return spec.max_num_tokens; }

Model::Model(Pool& pool_, const quire_model_spec& spec_)
    : pool(pool_),
      spec(checked(spec_)),
      kv(spec.kv),
      workspace(spec.workspace_bytes),
      attention(kv.layout, pool.size()) {
  samplers.reserve(pool.size());
  for (int i = 0; i < pool.size(); ++i) samplers.emplace_back(spec.vocab_size);
}

int64_t Model::workspace_bytes() const {
  int64_t bytes = workspace.most_bytes() + attention.most_bytes();
  if (linear_scratch) bytes += linear_scratch->most_bytes();
  if (logits) bytes += logits->most_bytes();
  for (const RopeTable& rope : ropes) bytes += rope.most_bytes();
  for (const Sampler& sampler : samplers) bytes += sampler.most_bytes();
  return bytes;
}

void set_ops(Model& model, const quire_op* ops, int32_t num_ops) {
  require(num_ops >= 1, "a model has at least one op");
  OpChecker checker(model);
  int32_t query_heads = 0;
  size_t scratch = 64;
  int64_t token_ids = model.spec.vocab_size;
  const auto reserve_for = [&](int32_t id, int64_t rows) {
    const PackedMatrix& weight = model.matrices[id];
    scratch = std::max(scratch, linear_scratch_bytes(weight.format, weight.k, rows));
  };
  for (int32_t i = 0; i < num_ops; ++i) {
    const quire_op& op = ops[i];
    checker.check(op, i + 1 == num_ops);
    if (op.kind == QUIRE_OP_EMBED) {
      const quire_embed& embed = op.u.embed;
      const int64_t rows =
          embed.matrix >= 0 ? model.matrices[embed.matrix].n : model.tables[embed.table].rows;
      token_ids = std::min(token_ids, rows);
    }
    if (op.kind == QUIRE_OP_LINEAR) reserve_for(op.u.linear.matrix, model.spec.max_num_tokens);
    if (op.kind == QUIRE_OP_LOGITS) reserve_for(op.u.logits.matrix, kLogitsSlab);
    if (op.kind != QUIRE_OP_ATTENTION) continue;
    require(query_heads == 0 || query_heads == op.u.attention.num_heads,
            "attention: layers with different numbers of heads");
    query_heads = op.u.attention.num_heads;
  }
  model.ops.assign(ops, ops + num_ops);
  model.op_seconds.assign(num_ops, 0.0);
  model.query_group = query_heads == 0 ? 1 : query_heads / model.spec.kv.num_kv_heads;
  model.num_token_ids = token_ids;
  model.linear_scratch = std::make_unique<Reservation>(scratch);
  const int64_t slab = std::min<int64_t>(kLogitsSlab, max_logits_rows(model.spec));
  model.logits = std::make_unique<Reservation>(slab * model.spec.vocab_size * sizeof(float));
}

}  // namespace quire

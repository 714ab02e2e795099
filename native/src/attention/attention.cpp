#include "attention/attention.h"

#include <algorithm>
#include <stdexcept>

#include "attention/attend.h"
#include "attention/kernels/amx_kernel.h"
#include "attention/kernels/byte_kernel.h"
#include "ops/kernel.h"

namespace quire {
namespace {

const KvLayout& layout_of(const Step& step, const quire_attention& op) {
  return step.model.kv.layouts[op.kv.layer_group];
}

template <class Kernel>
void attend_pieces(const Step& step, const quire_attention& op, Worker& worker) {
  const int64_t num_heads = layout_of(step, op).num_kv_heads;
  const AttentionPlan& plan = step.plan_of(op);
  const int64_t pieces = static_cast<int64_t>(plan.pieces.size()) * num_heads;
  Attend<Kernel> work(step, op, worker.index());
  Kernel::begin();
  const auto unit_of = [&](int64_t ticket) -> typename Attend<Kernel>::Unit {
    if (ticket >= pieces) return {};
    const AttentionPlan::Piece& piece = plan.pieces[ticket / num_heads];
    return {&plan.items[piece.item], piece.part, static_cast<int>(ticket % num_heads)};
  };
  // Neighbouring heads lie side by side in the cache, and what the hardware fetches beyond the end
  // of one is the beginning of the next.
  const int64_t span = std::clamp<int64_t>(pieces / (8 * step.model.pool.size()), 1, num_heads);
  Tickets tickets(worker, span);
  // The next unit is taken before this one is done, so that its K can be fetched meanwhile.
  for (auto unit = unit_of(tickets.next()); unit.item;) {
    const auto next = unit_of(tickets.next());
    work.work(unit, next);
    unit = next;
  }
  Kernel::end();
}

// Merging is the same for all kernels.
void merge_pieces(const Step& step, const quire_attention& op, Worker& worker) {
  const int64_t num_heads = layout_of(step, op).num_kv_heads;
  const AttentionPlan& plan = step.plan_of(op);
  const int64_t merges = static_cast<int64_t>(plan.items.size()) * num_heads;
  Attend<VectorKernel<F32Pairs>> work(step, op, worker.index());
  for (int64_t ticket; (ticket = worker.grab()) < merges;) {
    const AttentionItem& item = plan.items[ticket / num_heads];
    if (item.parts > 1) work.merge(item, static_cast<int>(ticket % num_heads));
  }
}

template <class Kernel>
void attend(const Step& step, const quire_attention& op) {
  const AttentionPlan& plan = step.plan_of(op);
  const int64_t num_heads = layout_of(step, op).num_kv_heads;
  Pool& pool = step.model.pool;
  pool.run(static_cast<int64_t>(plan.pieces.size()) * num_heads,
           [&](Worker& worker) { attend_pieces<Kernel>(step, op, worker); });
  if (!plan.split) return;
  pool.run(static_cast<int64_t>(plan.items.size()) * num_heads,
           [&](Worker& worker) { merge_pieces(step, op, worker); });
}

#if !defined(__AMX_BF16__)
template <int kBits>
void attend_bytes(const Step& step, const quire_attention& op) {
#if defined(QUIRE_DOTS_OF_BYTES)
  return op.activation_bits == 8 ? attend<ByteKernel<BytePlanes<1>, kBits>>(step, op)
                                 : attend<ByteKernel<BytePlanes<2>, kBits>>(step, op);
#else
  return attend<ByteKernel<Words, kBits>>(step, op);
#endif
}
#endif

void run_attention(const Step& step, const quire_attention& op, int32_t) {
  const int32_t dtype = step.model.kv.dtype;
  if (dtype == QUIRE_F32) return attend<VectorKernel<F32Pairs>>(step, op);
#if defined(__AMX_BF16__)
  if (dtype == QUIRE_INT8) return attend<ExpandingAmxKernel<8>>(step, op);
  if (dtype == QUIRE_INT4) return attend<ExpandingAmxKernel<4>>(step, op);
  attend<AmxKernel>(step, op);
#else
  if (dtype == QUIRE_INT8) return attend_bytes<8>(step, op);
  if (dtype == QUIRE_INT4) return attend_bytes<4>(step, op);
#if defined(QUIRE_DOTS_OF_BF16)
  attend<VectorKernel<Bf16Pairs>>(step, op);
#else
  attend<VectorKernel<WidenedPairs>>(step, op);
#endif
#endif
}

void check_attention(const OpChecks& checks, const quire_attention& op) {
  checks.require(checks.rows() == QUIRE_ROWS_TOKENS, "works on all tokens");
  const KvLayout& kv = checks.model().kv.layouts[op.kv.layer_group];
  const int32_t kept = checks.model().kv.windows[op.kv.layer_group];
  checks.require(kept == 0 || (op.window > 0 && op.window <= kept),
                 "sees more than its layer group keeps");
  checks.require(op.num_heads >= 1 && op.num_heads % kv.num_kv_heads == 0,
                 "num_heads must be a multiple of the kv heads");
  checks.require(kv.keys.dim == kv.values.dim, "keys and values differ in width");
  checks.require(op.q.dim == int64_t{op.num_heads} * kv.keys.dim && op.out.dim == op.q.dim,
                 "q or out has another width");
  checks.require(op.scale > 0 && op.softcap >= 0 && op.window >= 0, "scale, cap or window");
  checks.require(op.is_chunked == 0 || (op.is_chunked == 1 && op.window > 0), "is_chunked");
  checks.require(op.activation_bits == 8 || op.activation_bits == 16, "activation bits");
  checks.require(op.taken_only == 0 || op.taken_only == 1, "taken_only");
  checks.require(op.is_bidirectional == 0 || (op.is_bidirectional == 1 && op.is_chunked == 0),
                 "is_bidirectional");
  checks.require(op.spans == 0 || (op.spans == 1 && op.is_chunked == 0), "spans");
  const bool is_plain = op.window == 0 && op.is_bidirectional == 0 && op.spans == 0;
  checks.require(op.first_key >= 0 && op.num_keys >= 0 &&
                     ((op.first_key == 0 && op.num_keys == 0) || is_plain),
                 "first_key or num_keys");
  checks.vector(op.alibi, op.num_heads);
  const auto& vectors = checks.model().vectors;
  checks.require(op.relative < 0 || vectors[op.relative].size() / op.num_heads % 2 == 1,
                 "biases of another size");
  checks.vector(op.sinks, op.num_heads);
}

void look_at_attention(FiniteWatch& watch, const quire_attention& op, int32_t rows) {
  if (op.taken_only) {
    watch.look_at_taken(op.out);
  } else {
    watch.look_at_rows(op.out, rows);
  }
}

void reserve_attention(const Model&, const quire_attention& op, OpNeeds& needs) {
  const int32_t num_heads = op.num_heads;
  if (needs.num_query_heads != 0 && needs.num_query_heads != num_heads) {
    throw std::invalid_argument("attention: layers with different numbers of heads");
  }
  needs.num_query_heads = num_heads;
}

const OpRegistration kAttention(op_kind<quire_attention, check_attention, run_attention,
                                        look_at_attention, reserve_attention>());

}  // namespace

AttentionScratch::AttentionScratch(const std::vector<KvLayout>& layouts, int num_workers)
    : worker_bytes_([&] {
        int64_t dim = 0;
        for (const KvLayout& layout : layouts) {
          if (layout.has_values()) dim = std::max<int64_t>(dim, layout.keys.padded_dim);
        }
        const int64_t floats = 2 * int64_t{kItemRows + kMaxTileRows} * dim +
                               kMaxTileRows * (kScoreStride + kWeightStride) +
                               int64_t{kMaxTileRows} * dim + int64_t{kGroup} * dim + 2 * kChunk +
                               2 * int64_t{kChunk} * dim;
        return round_up(floats * 4 + 4096, 4096);
      }()),
      workers_(worker_bytes_ * num_workers),
      partials_(kPartialBytes) {}

}  // namespace quire

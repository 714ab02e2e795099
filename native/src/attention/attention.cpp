#include "attention/attention.h"

#include "attention/attend.h"
#include "attention/kernels/amx_kernel.h"
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include "attention/kernels/byte_kernel.h"
#endif
#include "runtime/model.h"

namespace quire {
namespace {

template <class Kernel>
void attend_pieces(const Step& step, const quire_attention& op, Worker& worker) {
  const int64_t num_heads = step.model.kv.layout.num_kv_heads;
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

template <class Kernel>
void merge_pieces(const Step& step, const quire_attention& op, Worker& worker) {
  const int64_t num_heads = step.model.kv.layout.num_kv_heads;
  const AttentionPlan& plan = step.plan_of(op);
  const int64_t merges = static_cast<int64_t>(plan.items.size()) * num_heads;
  Attend<Kernel> work(step, op, worker.index());
  for (int64_t ticket; (ticket = worker.grab()) < merges;) {
    const AttentionItem& item = plan.items[ticket / num_heads];
    if (item.parts > 1) work.merge(item, static_cast<int>(ticket % num_heads));
  }
}

template <class Kernel>
void attend(const Step& step, const quire_attention& op) {
  const AttentionPlan& plan = step.plan_of(op);
  const int64_t num_heads = step.model.kv.layout.num_kv_heads;
  Pool& pool = step.model.pool;
  pool.run(static_cast<int64_t>(plan.pieces.size()) * num_heads,
           [&](Worker& worker) { attend_pieces<Kernel>(step, op, worker); });
  if (!plan.split) return;
  pool.run(static_cast<int64_t>(plan.items.size()) * num_heads,
           [&](Worker& worker) { merge_pieces<Kernel>(step, op, worker); });
}

}  // namespace

AttentionScratch::AttentionScratch(const KvLayout& layout, int num_workers)
    : worker_bytes_([&] {
        const int64_t dim = layout.padded_dim;
        const int64_t floats = 2 * int64_t{kItemRows + kMaxTileRows} * dim +
                               kMaxTileRows * (kScoreStride + kWeightStride) +
                               int64_t{kMaxTileRows} * dim + int64_t{kGroup} * dim + 2 * kChunk +
                               2 * int64_t{kChunk} * dim;
        return round_up(floats * 4 + 4096, 4096);
      }()),
      workers_(worker_bytes_ * num_workers),
      partials_(kPartialBytes) {}

void attention(const Step& step, const quire_attention& op) {
  const int32_t dtype = step.model.kv.layout.dtype;
  if (dtype == QUIRE_F32) return attend<VectorKernel<F32Pairs>>(step, op);
#if defined(__AMX_BF16__)
  if (dtype == QUIRE_INT8) return attend<ExpandingAmxKernel>(step, op);
  attend<AmxKernel>(step, op);
#else
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  if (dtype == QUIRE_INT8) {
    return op.activation_bits == 8 ? attend<ByteKernel<1>>(step, op)
                                   : attend<ByteKernel<2>>(step, op);
  }
#else
  if (dtype == QUIRE_INT8) return attend<ExpandingVectorKernel<F32Pairs>>(step, op);
#endif
#if defined(__AVX512BF16__)
  attend<VectorKernel<Bf16Pairs>>(step, op);
#else
  attend<VectorKernel<WidenedPairs>>(step, op);
#endif
#endif
}

}  // namespace quire

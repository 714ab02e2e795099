// The last op: computes logits in slabs of rows, and samples their tokens.
#include <algorithm>
#include <cstring>

#include "adapters/adapter.h"
#include "linear/activation.h"
#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

// Maximum number of rows of logits in memory at a time.
constexpr int64_t kLogitsSlab = 64;

void cap_row(float* logits, int64_t size, float cap) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const F32x16 v = load_some(logits, QUIRE_F32, i, size - i);
    store_some(logits, QUIRE_F32, i, size - i, gemm::tanh_of(v * (1.0f / cap)) * cap);
  }
}

// Row `l` of the step, to where the caller wants it.
void copy_row(const quire_output& output, int64_t l, const float* row, int64_t vocab) {
  if (!output.logits) return;
  const int64_t place = output.logits_places ? output.logits_places[l] : l;
  if (place >= 0) std::memcpy(output.logits + place * vocab, row, vocab * sizeof *row);
}

void run_logits(const Step& step, const quire_logits& op, int32_t) {
  Model& model = step.model;
  const PackedMatrix& head = model.matrices[op.weight];
  float* slab = reinterpret_cast<float*>(model.logits->data());
  const int64_t vocab = model.spec.vocab_size;
  const bool is_wanted = step.batch.sampling || step.output.logits;  // by this rank
  const int64_t total = step.batch.num_logits_rows;
  for (int64_t first = 0; first < total; first += kLogitsSlab) {
    const int64_t rows = std::min(kLogitsSlab, total - first);
    LinearArgs args{};
    args.weight = &head;
    args.x = step.row(op.x, first);
    args.x_dtype = static_cast<DType>(op.x.dtype);
    args.m = rows;
    args.x_stride = op.x.stride;
    args.bias = step.vector(op.bias);
    args.scale = op.scale;
    args.out = slab + op.first;
    args.out_dtype = DType::kF32;
    args.out_stride = vocab;
    args.scratch = model.linear_scratch->data();
    if (first > 0) model.ranks.wait(op.exchange);  // until no rank reads the slab before
    const ProductRows own{op.weight, QUIRE_ROWS_LOGITS, first, nullptr};
    linear_with_adapters(step, &own, &args, 1);
    if (op.exchange >= 0) {
      model.ranks.complete(op.exchange, reinterpret_cast<uint8_t*>(slab), rows,
                           vocab * static_cast<int64_t>(sizeof(float)));
    }
    if (!is_wanted) continue;
    model.pool.run(rows, [&](Worker& worker) {
      for (int64_t r; (r = worker.grab_own(rows)) < rows;) {
        float* row = slab + r * vocab;
        if (op.softcap > 0) cap_row(row, vocab, op.softcap);
        copy_row(step.output, first + r, row, vocab);
        if (step.batch.sampling) {
          model.samplers[worker.index()].work(*step.batch.sampling, step.output, first + r, row);
        }
      }
    });
  }
}

void check_logits(const OpChecks& checks, const quire_logits& logits) {
  const PackedMatrix& head = checks.matrix(logits.weight);
  checks.view(logits.x, QUIRE_ROWS_LOGITS);
  checks.vector(logits.bias, head.n);
  const int64_t vocab = checks.model().spec.vocab_size;
  const bool is_whole = logits.exchange < 0;
  checks.require(logits.x.dim == head.k && !head.glu && logits.first >= 0 &&
                     logits.first + head.n <= vocab && (!is_whole || head.n == vocab),
                 "the head has another shape");
}

void reserve_logits(const Model& model, const quire_logits& op, OpNeeds& needs) {
  const PackedMatrix& head = model.matrices[op.weight];
  needs.scratch_bytes =
      std::max(needs.scratch_bytes, linear_scratch_bytes(head.format, head.k, kLogitsSlab));
  const int64_t rows = std::min<int64_t>(kLogitsSlab, max_logits_rows(model.spec));
  needs.logits_bytes = rows * model.spec.vocab_size * sizeof(float);
}

// The step itself says which rows of the logits are not finite.
const OpRegistration kLogits(
    op_kind<quire_logits, check_logits, run_logits, nullptr, reserve_logits>(true));

}  // namespace
}  // namespace quire

// How a program ends in vectors: the mean of a request's tokens, and the copy to the output.
#include <algorithm>
#include <cstring>

#include "ops/kernel.h"
#include "simd/vector.h"

namespace quire {
namespace {

// Numbers i .. i + 15 of the mean of tokens first .. last - 1.
F32x16 mean_at(const Step& step, const quire_view& x, int64_t first, int64_t last, int64_t i,
               int64_t n) {
  F32x16 total = {};
  for (int64_t begin = first; begin < last; begin += kGroup) {
    F32x16 sum = {};
    const int64_t end = std::min<int64_t>(begin + kGroup, last);
    for (int64_t t = begin; t < end; ++t) sum = sum + load_some(step.row(x, t), x.dtype, i, n);
    total = total + sum;
  }
  return total * (1.0f / static_cast<float>(last - first));
}

void mean_rows(const Step& step, const quire_mean_rows& op, Span span) {
  const int32_t* starts = step.batch.seq_starts;
  for (int64_t r = span.first; r < span.last; ++r) {
    const int32_t token = step.batch.logits_rows[r];
    const int32_t* after = std::upper_bound(starts, starts + step.batch.num_seqs + 1, token);
    for (int64_t i = 0; i < op.out.dim; i += kLanes) {
      const int64_t n = std::min<int64_t>(op.out.dim - i, kLanes);
      store_some(step.row(op.out, r), op.out.dtype, i, n,
                 mean_at(step, op.x, after[-1], after[0], i, n));
    }
  }
}

void run_mean(const Step& step, const quire_mean_rows& op, int32_t) {
  by_rows(step, step.batch.num_logits_rows, op.out.dim,
          [&](Span rows) { mean_rows(step, op, rows); });
}

void check_mean(const OpChecks& checks, const quire_mean_rows& op) {
  checks.require(op.x.dim == op.out.dim, "dims differ");
  checks.view(op.x, QUIRE_ROWS_TOKENS);
  checks.view(op.out, QUIRE_ROWS_LOGITS);
}

void look_at_mean(FiniteWatch& watch, const quire_mean_rows& op, int32_t) {
  watch.look_at_rows(op.out, QUIRE_ROWS_LOGITS);
}

void run_vectors(const Step& step, const quire_vectors& op, int32_t) {
  const quire_view& x = op.x;
  if (!step.output.logits) return;
  const int32_t* places = step.output.logits_places;
  by_rows(step, step.batch.num_logits_rows, x.dim, [&](Span rows) {
    for (int64_t r = rows.first; r < rows.last; ++r) {
      const int64_t place = places ? places[r] : r;
      if (place < 0) continue;
      float* out = step.output.logits + place * x.dim;
      for (int64_t i = 0; i < x.dim; i += kLanes) {
        const int64_t n = x.dim - i;
        store_some(out, QUIRE_F32, i, n, load_some(step.row(x, r), x.dtype, i, n));
      }
    }
  });
}

void check_vectors(const OpChecks& checks, const quire_vectors& op) {
  checks.view(op.x, QUIRE_ROWS_LOGITS);
}

const OpRegistration kMean(op_kind<quire_mean_rows, check_mean, run_mean, look_at_mean>());
const OpRegistration kVectors(op_kind<quire_vectors, check_vectors, run_vectors, nullptr>(true));

}  // namespace
}  // namespace quire

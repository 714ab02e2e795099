#include "runtime/finite_watch.h"

#include <algorithm>

#include "ops/by_rows.h"
#include "simd/vector.h"

namespace quire {
namespace {

bool is_finite(const void* row, const quire_view& view) {
  gemm::Extent extent;
  for (int64_t i = 0; i < view.dim; i += kLanes) {
    extent.add(load_some(row, view.dtype, i, std::min<int64_t>(view.dim - i, kLanes)));
  }
  return extent.bad() == 0.0f;
}

}  // namespace

FiniteWatch::FiniteWatch(const Step& step, int32_t* first_ops)
    : step_(step), first_ops_(first_ops), found_(step.batch.num_seqs) {
  std::fill_n(first_ops, step.batch.num_seqs, -1);
  for (int32_t seq = 0; seq < step.batch.num_seqs; ++seq) {
    seq_of_token_.resize(step.batch.seq_starts[seq + 1], seq);
  }
}

void FiniteWatch::look(int32_t index, const ModelOp& op) {
  if (op.kind->look != nullptr) op.kind->look(*this, op.op);
  for (int32_t seq = 0; seq < step_.batch.num_seqs; ++seq) {
    if (found_[seq] && first_ops_[seq] < 0) first_ops_[seq] = index;
  }
}

void FiniteWatch::look_at_rows(const quire_view& view, int32_t rows) {
  const int32_t* taken = step_.batch.logits_rows;
  by_rows(step_, step_.rows(rows), view.dim, [&](Span span) {
    for (int64_t r = span.first; r < span.last; ++r) {
      const int64_t token = rows == QUIRE_ROWS_LOGITS ? taken[r] : r;
      if (!is_finite(step_.row(view, r), view)) found_[seq_of_token_[token]] = true;
    }
  });
}

void FiniteWatch::look_at_taken(const quire_view& view) {
  const int32_t* tokens = step_.batch.logits_rows;
  by_rows(step_, step_.batch.num_logits_rows, view.dim, [&](Span span) {
    for (int64_t i = span.first; i < span.last; ++i) {
      if (!is_finite(step_.row(view, tokens[i]), view)) found_[seq_of_token_[tokens[i]]] = true;
    }
  });
}

}  // namespace quire

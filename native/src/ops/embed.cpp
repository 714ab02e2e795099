// Lookups in tables of rows: token embeddings, learned positions, and the rows that want logits.
#include <cstring>

#include "ops/ops.h"
#include "simd/vector.h"
#include "weights/packed_row.h"

namespace quire {
namespace {

void embed_rows(const Step& step, const quire_embed& op, Span span) {
  for (int64_t t = span.first; t < span.last; ++t) {
    const int64_t id = step.batch.token_ids[t];
    float* out = step.f32_row(op.out, t);
    const void* row = out;
    int32_t dtype = QUIRE_F32;
    if (op.matrix >= 0) {
      unpack_row(step.model.matrices[op.matrix], id, out);
    } else {
      const Table& table = step.model.tables[op.table];
      row = table.data + id * table.row_bytes();
      dtype = table.dtype;
    }
    for (int64_t i = 0; i < op.out.dim; i += kLanes) {
      const int64_t n = op.out.dim - i;
      store_some(out, QUIRE_F32, i, n, load_some(row, dtype, i, n) * op.scale);
    }
  }
}

void add_positions(const Step& step, const quire_positions& op, Span span) {
  const Table& table = step.model.tables[op.table];
  for (int64_t t = span.first; t < span.last; ++t) {
    const int64_t position = step.batch.positions[t] + int64_t{op.offset};
    const uint8_t* row = table.data + position * table.row_bytes();
    for (int64_t i = 0; i < op.out.dim; i += kLanes) {
      const int64_t n = op.out.dim - i;
      const F32x16 x = load_some(step.row(op.x, t), op.x.dtype, i, n);
      store_some(step.row(op.out, t), op.out.dtype, i, n, x + load_some(row, table.dtype, i, n));
    }
  }
}

void copy_rows(const Step& step, const quire_take_rows& op, Span span) {
  for (int64_t r = span.first; r < span.last; ++r) {
    const uint8_t* from = step.row(op.x, step.batch.logits_rows[r]);
    for (int64_t i = 0; i < op.out.dim; i += kLanes) {
      const int64_t n = op.out.dim - i;
      store_some(step.row(op.out, r), op.out.dtype, i, n, load_some(from, op.x.dtype, i, n));
    }
  }
}

}  // namespace

void embed(const Step& step, const quire_embed& op) {
  by_rows(step, step.batch.num_tokens, op.out.dim, [&](Span rows) { embed_rows(step, op, rows); });
}

void learned_positions(const Step& step, const quire_positions& op) {
  by_rows(step, step.batch.num_tokens, op.out.dim,
          [&](Span rows) { add_positions(step, op, rows); });
}

void take_rows(const Step& step, const quire_take_rows& op) {
  by_rows(step, step.batch.num_logits_rows, op.out.dim,
          [&](Span rows) { copy_rows(step, op, rows); });
}

}  // namespace quire

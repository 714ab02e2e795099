// Lookups of rows: token embeddings, learned positions, and the rows that get logits.
#include <algorithm>

#include "adapters/adapter.h"
#include "ops/kernel.h"
#include "simd/vector.h"
#include "weights/packed_row.h"

namespace quire {
namespace {

bool has_table(const quire_embed& embed) { return embed.matrix >= 0 || embed.table >= 0; }

int64_t table_rows(const Model& model, const quire_embed& embed) {
  if (!has_table(embed)) return embed.num_ids;
  return embed.matrix >= 0 ? model.matrices[embed.matrix].n : model.tables[embed.table].rows;
}

bool is_exchanged(const Model& model, const quire_embed& embed) {
  return table_rows(model, embed) < embed.num_ids;
}

void embed_rows(const Step& step, const quire_embed& op, Span span) {
  const int64_t num_rows = table_rows(step.model, op);
  const float* const* given = op.given_first < 0 ? nullptr : step.batch.input_rows;
  for (int64_t t = span.first; t < span.last; ++t) {
    const int64_t id = step.batch.token_ids[t] - int64_t{op.first_id};
    if (id < 0 || id >= num_rows) continue;  // another rank has it
    float* out = step.f32_row(op.out, t);
    if (given && given[t]) {
      const float* numbers = given[t] + op.given_first;
      for (int64_t i = 0; i < op.out.dim; ++i) out[i] = numbers[i] * step.batch.input_scale;
      continue;
    }
    if (!has_table(op)) {
      std::fill_n(out, op.out.dim, 0.0f);
      continue;
    }
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
    if (const int32_t number = step.adapters.of_token(t); number >= 0) {
      const Adapter& adapter = step.batch.adapters[number]->adapter;
      adapter.change_embedding(op.matrix, op.table, id, op.scale, out);
    }
  }
}

int64_t index_of(const Step& step, const quire_positions& op, int64_t t) {
  if (op.by_type == 0) return step.batch.positions[t];
  return step.batch.token_types ? step.batch.token_types[t] : 0;
}

void add_positions(const Step& step, const quire_positions& op, Span span) {
  const Table& table = step.model.tables[op.table];
  for (int64_t t = span.first; t < span.last; ++t) {
    // Tokens before the table's first row, such as those of an encoder, are not among these.
    const int64_t index = std::max<int64_t>(index_of(step, op, t) + op.offset, 0);
    const uint8_t* row = table.data + index * table.row_bytes();
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

void check_embed(const OpChecks& checks, const quire_embed& embed) {
  checks.require(embed.out.dtype == QUIRE_F32, "out is not float32");
  checks.require(embed.given_first >= -1, "given_first");
  int64_t width = embed.out.dim;
  if (embed.matrix >= 0) {
    width = checks.matrix(embed.matrix).k;
    checks.require(!checks.matrix(embed.matrix).glu, "a table must not be a glu matrix");
  } else if (embed.table >= 0) {
    width = checks.table(embed.table).width;
  }
  const int64_t rows = table_rows(checks.model(), embed);
  checks.require(width == embed.out.dim && rows >= 1, "table of another shape");
  checks.require(embed.first_id >= 0 && embed.first_id + rows <= embed.num_ids,
                 "rows of other token ids");
}

void check_positions(const OpChecks& checks, const quire_positions& positions) {
  const Table& table = checks.table(positions.table);
  checks.require(positions.x.dim == positions.out.dim && table.width == positions.out.dim,
                 "dims differ");
  const int64_t indices = positions.by_type ? 1 : checks.model().spec.max_model_len;
  const int64_t last = indices + int64_t{positions.offset};
  checks.require(last >= 1 && last <= table.rows,
                 "the table is shorter than max_model_len");
}

void check_take_rows(const OpChecks& checks, const quire_take_rows& take) {
  checks.require(take.x.dim == take.out.dim, "dims differ");
  checks.view(take.x, QUIRE_ROWS_TOKENS);
  checks.view(take.out, QUIRE_ROWS_LOGITS);
}

void run_embed(const Step& step, const quire_embed& embed, int32_t) {
  by_rows(step, step.batch.num_tokens, embed.out.dim,
          [&](Span rows) { embed_rows(step, embed, rows); });
}

void run_positions(const Step& step, const quire_positions& positions, int32_t) {
  by_rows(step, step.batch.num_tokens, positions.out.dim,
          [&](Span rows) { add_positions(step, positions, rows); });
}

void run_take_rows(const Step& step, const quire_take_rows& take, int32_t) {
  by_rows(step, step.batch.num_logits_rows, take.out.dim,
          [&](Span rows) { copy_rows(step, take, rows); });
}

void reserve_positions(const Model& model, const quire_positions& positions, OpNeeds& needs) {
  if (positions.by_type == 0) return;
  const int64_t types = model.tables[positions.table].rows - positions.offset;
  needs.num_token_types = std::min(needs.num_token_types, types);
}

void look_at_embed(FiniteWatch& watch, const quire_embed& op, int32_t rows) {
  // The exchange that brings other ranks' rows looks at all of them.
  if (!is_exchanged(watch.model(), op)) watch.look_at_rows(op.out, rows);
}

void reserve_embed(const Model&, const quire_embed& op, OpNeeds& needs) {
  needs.num_token_ids = std::min<int64_t>(needs.num_token_ids, op.num_ids);
}

const OpRegistration kEmbed(
    op_kind<quire_embed, check_embed, run_embed, look_at_embed, reserve_embed>());
const OpRegistration kPositions(op_kind<quire_positions, check_positions, run_positions,
                                        look_at_out<quire_positions>, reserve_positions>());
// The op that computed the taken rows has checked them already.
const OpRegistration kTakeRows(op_kind<quire_take_rows, check_take_rows, run_take_rows, nullptr>());

}  // namespace
}  // namespace quire

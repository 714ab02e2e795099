// One step: check what came in, derive what all layers share, run the ops.
#include <time.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "adapters/adapter.h"
#include "runtime/finite_watch.h"
#include "runtime/model.h"

namespace quire {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw std::invalid_argument(what);
}

void check_range(const char* what, const int32_t* values, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] < 0 || values[i] >= limit) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(values[i]) +
                                  " is not from 0 to " + std::to_string(limit - 1));
    }
  }
}

void check_seq(const Model& model, const quire_batch& batch, int32_t seq) {
  const std::string name = "request " + std::to_string(seq) + ": ";
  const int64_t begin = batch.seq_starts[seq];
  const int64_t end = batch.seq_starts[seq + 1];
  require(begin <= end && end <= batch.num_tokens, name + "seq_starts do not ascend");
  const int64_t length = batch.context_lens[seq];
  require(length >= end - begin && length <= model.spec.max_model_len,
          name + std::to_string(length) + " tokens are not in range");
  for (int64_t t = begin; t < end; ++t) {
    require(batch.positions[t] == length - end + t,
            name + "positions do not end at " + std::to_string(length) + " tokens");
  }
  for (int32_t g = 0; g < model.kv.num_layer_groups(); ++g) {
    const int64_t row = int64_t{seq} * model.kv.num_layer_groups() + g;
    const int64_t num_blocks = model.kv.num_entries(g, length);
    require(num_blocks <= batch.table_width, name + std::to_string(length) + " tokens do not fit " +
                                                 std::to_string(batch.table_width) + " blocks");
    const int64_t first = model.kv.first_entry(g, length - (end - begin));
    check_range("block id", batch.block_tables + row * batch.table_width + first,
                num_blocks - first, model.kv.num_blocks);
  }
}

// `most`: entries of a row.
void check_lists(const std::string& name, const quire_token_lists& lists, bool has_values,
                 int32_t num_rows, int32_t vocab_size, int64_t most) {
  if (!lists.starts) return;
  const std::string what = "sampling: " + name;
  require(lists.ids && (lists.values || !has_values) && lists.starts[0] == 0,
          what + " is incomplete");
  for (int32_t l = 0; l < num_rows; ++l) {
    const int64_t count = int64_t{lists.starts[l + 1]} - lists.starts[l];
    require(count >= 0 && count <= most, what + " has a row of a wrong length");
  }
  check_range((name + " id").c_str(), lists.ids, lists.starts[num_rows], vocab_size);
}

void check_masks(const quire_token_masks& masks, int32_t num_rows) {
  if (!masks.index) return;
  require(masks.words || masks.num_masks == 0, "sampling: mask is incomplete");
  for (int32_t l = 0; l < num_rows; ++l) {
    require(masks.index[l] >= -1 && masks.index[l] < masks.num_masks,
            "sampling: mask has a row without words");
  }
}

void check_sampling(const quire_batch& batch, const quire_output& output, int32_t vocab_size) {
  const quire_sampling& s = *batch.sampling;
  require(s.temperature && s.seeds && s.counters && output.sampled && output.not_finite &&
              output.no_choice,
          "sampling without temperature, seeds, counters or a place for the result");
  for (int32_t l = 0; l < batch.num_logits_rows; ++l) Sampler::check(s, l, vocab_size);
  check_lists("allowed", s.allowed, false, batch.num_logits_rows, vocab_size, vocab_size);
  check_lists("bias", s.bias, true, batch.num_logits_rows, vocab_size, kMostBiases * vocab_size);
  check_lists("reported", s.reported, false, batch.num_logits_rows, vocab_size, vocab_size);
  check_lists("seen", s.seen, true, batch.num_logits_rows, vocab_size, vocab_size);
  check_masks(s.mask, batch.num_logits_rows);
}

void check_axes(const Model& model, const quire_batch& batch) {
  if (!batch.axis_positions) return;
  require(batch.num_axes >= 1 && batch.num_axes <= QUIRE_MAX_AXES, "num_axes");
  for (const RopeTable& rope : model.ropes) {
    require(rope.num_axes() <= batch.num_axes, "axis_positions have too few axes");
  }
  check_range("axis position", batch.axis_positions, int64_t{batch.num_tokens} * batch.num_axes,
              model.spec.max_model_len);
}

// Of a request's tokens, neither begin nor end may go back.
void check_spans(const quire_batch& batch) {
  if (!batch.span_firsts && !batch.span_lasts) return;
  require(batch.span_firsts && batch.span_lasts, "spans are incomplete");
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    const int32_t begin = batch.seq_starts[seq];
    for (int32_t t = begin; t < batch.seq_starts[seq + 1]; ++t) {
      const int32_t before = t == begin ? t : t - 1;
      const int32_t first = batch.span_firsts[t];
      const int32_t last = batch.span_lasts[t];
      require(first >= batch.positions[begin] && first <= batch.positions[t] &&
                  last >= batch.positions[t] && last < batch.context_lens[seq] &&
                  first >= batch.span_firsts[before] && last >= batch.span_lasts[before],
              "a token is outside of its span, or the step is");
    }
  }
}

void check_batch(const Model& model, const quire_batch& batch, const quire_output& output) {
  require(!model.ops.empty(), "the model has no ops");
  require(batch.num_tokens >= 0 && batch.num_tokens <= model.spec.max_num_tokens &&
              batch.num_seqs >= 0 && batch.num_seqs <= model.spec.max_num_seqs &&
              batch.num_logits_rows >= 0 && batch.num_logits_rows <= max_logits_rows(model.spec),
          "a step of " + std::to_string(batch.num_tokens) + " tokens for " +
              std::to_string(batch.num_seqs) + " requests is larger than was compiled for");
  require(batch.seq_starts[0] == 0 && batch.seq_starts[batch.num_seqs] == batch.num_tokens,
          "seq_starts do not divide the tokens");
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) check_seq(model, batch, seq);
  check_range("token id", batch.token_ids, batch.num_tokens, model.num_token_ids);
  if (batch.token_types) {
    check_range("token type", batch.token_types, batch.num_tokens, model.num_token_types);
  }
  check_range("logits row", batch.logits_rows, batch.num_logits_rows, batch.num_tokens);
  check_axes(model, batch);
  check_spans(batch);
  check_adapters(model, batch);
  if (batch.sampling) check_sampling(batch, output, model.spec.vocab_size);
}

std::vector<TokenRun> runs_of(const quire_batch& batch) {
  std::vector<TokenRun> runs;
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    for (int32_t t = batch.seq_starts[seq]; t < batch.seq_starts[seq + 1];) {
      const int32_t to_group_end = kGroup - batch.positions[t] % kGroup;
      const int32_t count = std::min(to_group_end, batch.seq_starts[seq + 1] - t);
      runs.push_back({t, count, seq});
      t += count;
    }
  }
  return runs;
}

double now_s() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Step begin_step(Model& model, const quire_batch& batch, const quire_output& output) {
  Step step{model,
            batch,
            output,
            runs_of(batch),
            AttentionPlans(model, batch, false),
            {},
            AdapterRows(batch)};
  if (!step.takes_all()) step.taken_attention = AttentionPlans(model, batch, true);
  for (RopeTable& rope : model.ropes) rope.begin_step(batch, model.pool);
  return step;
}

}  // namespace

void run_step(Model& model, const quire_batch& batch, const quire_output& output) {
  check_batch(model, batch, output);
  if (batch.num_tokens == 0) return;
  model.ranks.begin_step();
  const Step step = begin_step(model, batch, output);
  double begin = model.profiling ? now_s() : 0;
  for (size_t i = 0; i < model.ops.size(); ++i) {
    model.ops[i].kind->run(step, model.ops[i].op);
    if (!model.profiling) continue;
    const double end = now_s();
    model.op_seconds[i] += end - begin;
    begin = end;
  }
  model.profiled_steps += model.profiling;
}

void sample_rows(Model& model, const quire_sampling& sampling, int32_t num_rows, float* logits,
                 const quire_output& output) {
  quire_batch rows{};
  rows.sampling = &sampling;
  rows.num_logits_rows = num_rows;
  check_sampling(rows, output, model.spec.vocab_size);
  model.pool.run(num_rows, [&](Worker& worker) {
    for (int64_t l; (l = worker.grab_own(num_rows)) < num_rows;) {
      model.samplers[worker.index()].work(sampling, output, l, logits + l * model.spec.vocab_size);
    }
  });
}

void find_not_finite(Model& model, const quire_batch& batch, int32_t* first_ops) {
  quire_batch unsampled = batch;
  unsampled.sampling = nullptr;
  const quire_output nothing{};
  check_batch(model, unsampled, nothing);
  const Step step = begin_step(model, unsampled, nothing);
  FiniteWatch watch(step, first_ops);
  if (batch.num_tokens == 0) return;
  model.ranks.begin_step();
  for (size_t i = 0; i < model.ops.size() && !model.ops[i].kind->is_last; ++i) {
    model.ops[i].kind->run(step, model.ops[i].op);
    watch.look(static_cast<int32_t>(i), model.ops[i]);
  }
}

}  // namespace quire

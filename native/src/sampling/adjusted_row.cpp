#include "sampling/adjusted_row.h"

#include <algorithm>

#include "sampling/logits_row.h"

namespace quire {

AdjustSpace::AdjustSpace(int32_t vocab_size) : vocab_size_(vocab_size) {
  forbidden_.reserve(vocab_size);
  before_.reserve(int64_t{vocab_size} * (kMostBiases + 1));
  touched_.resize((vocab_size + kBlock - 1) / kBlock);
}

int64_t AdjustSpace::most_bytes() const {
  const size_t bytes = (forbidden_.capacity() + before_.capacity()) * sizeof(float) +
                       touched_.capacity() * sizeof touched_[0];
  return static_cast<int64_t>(bytes);
}

AdjustedRow::AdjustedRow(const quire_sampling& columns, int64_t l, float* logits,
                         AdjustSpace& space)
    : columns_(columns),
      space_(space),
      row_(logits),
      allowed_(span_of(columns.allowed, l)),
      bias_(span_of(columns.bias, l)),
      seen_(span_of(columns.seen, l)) {
  is_changed_ = has_allowed() || bias_.begin != bias_.end || seen_.begin != seen_.end;
  if (!is_changed_) return;
  std::fill(space_.touched_.begin(), space_.touched_.end(), 0);
  space_.before_.clear();
  if (has_allowed()) allow(columns.allowed, logits);
  add_bias(columns.bias);
  penalise(columns, l);
}

AdjustedRow::~AdjustedRow() {
  if (!is_changed_) return;
  restore(columns_.seen, seen_);
  restore(columns_.bias, bias_);
  for (int32_t i = allowed_.begin; i < allowed_.end; ++i) {
    row_[columns_.allowed.ids[i]] = -kInfinity;
  }
}

AdjustedRow::Span AdjustedRow::span_of(const quire_token_lists& lists, int64_t l) {
  if (!lists.starts) return {};
  return {lists.starts[l], lists.starts[l + 1]};
}

void AdjustedRow::allow(const quire_token_lists& lists, const float* logits) {
  if (space_.forbidden_.empty()) space_.forbidden_.resize(space_.vocab_size_, -kInfinity);
  row_ = space_.forbidden_.data();
  for (int32_t i = allowed_.begin; i < allowed_.end; ++i) {
    const int32_t id = lists.ids[i];
    row_[id] = logits[id];
    space_.touched_[id / kBlock] = 1;
  }
}

void AdjustedRow::add_bias(const quire_token_lists& lists) {
  for (int32_t i = bias_.begin; i < bias_.end; ++i) {
    put(lists.ids[i], row_[lists.ids[i]] + lists.values[i]);
  }
}

void AdjustedRow::penalise(const quire_sampling& columns, int64_t l) {
  const float repetition = columns.repetition_penalty ? columns.repetition_penalty[l] : 1.0f;
  const float frequency = columns.frequency_penalty ? columns.frequency_penalty[l] : 0.0f;
  const float presence = columns.presence_penalty ? columns.presence_penalty[l] : 0.0f;
  const float inverse = 1.0f / repetition;
  for (int32_t i = seen_.begin; i < seen_.end; ++i) {
    const float count = columns.seen.values[i];
    float logit = row_[columns.seen.ids[i]];
    logit *= logit > 0.0f ? inverse : repetition;
    logit -= frequency * count;
    if (count > 0.0f) logit -= presence;
    put(columns.seen.ids[i], logit);
  }
}

void AdjustedRow::put(int32_t id, float logit) {
  space_.before_.push_back(row_[id]);
  row_[id] = logit;
  space_.touched_[id / kBlock] = 1;
}

// Backwards: an id may stand twice in a list.
void AdjustedRow::restore(const quire_token_lists& lists, Span span) {
  for (int32_t i = span.end; i-- > span.begin;) {
    row_[lists.ids[i]] = space_.before_.back();
    space_.before_.pop_back();
  }
}

}  // namespace quire

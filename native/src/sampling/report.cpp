// Reports the log-probabilities or logits of a row, for its best tokens or for listed tokens.
#include <algorithm>
#include <cmath>
#include <functional>

#include "sampling/logits_row.h"
#include "sampling/sampler.h"

namespace quire {
namespace {

// Logits to their log-probabilities. Where the largest is infinite, tokens that reach it share the
// probability.
class ToLogprob {
 public:
  ToLogprob(const float* logits, int64_t size, float top)
      : top_(top),
        normal_(std::isinf(top) ? std::log(std::count(logits, logits + size, top))
                                : log_sum_exp(logits, size, top, kBlock)) {}
  void operator()(float& logit) const {
    if (std::isinf(top_)) logit = logit == top_ ? 0.0f : -kInfinity;
    logit = static_cast<float>(logit - normal_);
  }

 private:
  float top_;
  double normal_;
};

int32_t rank_of(float logit, const float* logits, int64_t size) {
  int32_t rank = 1;
  for (int64_t id = 0; id < size; ++id) rank += logits[id] > logit;
  return rank;
}

}  // namespace

// The logits that the token was chosen by: divided by the temperature, minus infinity where the
// filters dropped a token. In weights_, which `choose` is done with.
const float* Sampler::process(const quire_sampling& columns, int64_t l, const float* logits) {
  const float temperature = columns.temperature[l] > 0.0f ? columns.temperature[l] : 1.0f;
  weights_.resize((vocab_size_ + kLanes - 1) / kLanes * kLanes);
  if (kept_ != Kept::kCandidates) {
    for (int32_t id = 0; id < vocab_size_; ++id) {
      const bool is_kept = kept_ == Kept::kAll || weights_[id] > 0.0f;
      weights_[id] = is_kept ? logits[id] / temperature : -kInfinity;
    }
    return weights_.data();
  }
  std::fill(weights_.begin(), weights_.end(), -kInfinity);
  for (const Candidate& c : candidates_) weights_[c.id] = c.logit / temperature;
  return weights_.data();
}

void Sampler::report(const quire_sampling& columns, const quire_output& output, int64_t l,
                     const float* logits, float top) {
  const int32_t kind = columns.logprobs_kind ? columns.logprobs_kind[l] : QUIRE_RAW_LOGPROBS;
  const float chosen = logits[output.sampled[l]];
  output.sampled_logprobs[l] = chosen;
  output.sampled_ranks[l] = rank_of(chosen, logits, vocab_size_);
  const quire_token_lists& listed = columns.reported;
  if (listed.starts && listed.starts[l] != listed.starts[l + 1]) {
    report_listed(columns, output, l, logits);
  } else {
    report_best(output, l, columns.num_logprobs[l], logits);
  }
  if (kind == QUIRE_RAW_LOGITS || kind == QUIRE_PROCESSED_LOGITS) return;
  const ToLogprob to_logprob(logits, vocab_size_, top);
  to_logprob(output.sampled_logprobs[l]);
  float* row = output.logprobs + l * output.logprobs_width;
  for (int64_t i = 0; i < output.logprobs_width; ++i) to_logprob(row[i]);
}

// Entries after the vocabulary's size are not written.
void Sampler::report_best(const quire_output& output, int64_t l, int64_t count,
                          const float* logits) {
  const int64_t wanted = std::min<int64_t>({count, output.logprobs_width, vocab_size_});
  if (wanted == 0) return;
  find_best(logits, wanted);
  std::sort(candidates_.begin(), candidates_.end(), better);
  const int64_t begin = l * output.logprobs_width;
  for (int64_t i = 0; i < wanted; ++i) {
    output.logprob_ids[begin + i] = candidates_[i].id;
    output.logprobs[begin + i] = candidates_[i].logit;
    output.logprob_ranks[begin + i] = static_cast<int32_t>(i + 1);
  }
}

void Sampler::report_listed(const quire_sampling& columns, const quire_output& output, int64_t l,
                            const float* logits) {
  const int64_t begin = l * output.logprobs_width;
  const int32_t* ids = columns.reported.ids + columns.reported.starts[l];
  const int64_t count = columns.reported.starts[l + 1] - columns.reported.starts[l];
  for (int64_t i = 0; i < std::min<int64_t>(count, output.logprobs_width); ++i) {
    output.logprob_ids[begin + i] = ids[i];
    output.logprobs[begin + i] = logits[ids[i]];
    output.logprob_ranks[begin + i] = rank_of(logits[ids[i]], logits, vocab_size_);
  }
}

// candidates_ = the `count` best tokens, in no order. The count-th largest of the groups' maxima is
// a lower bound of the count-th largest logit, so only what reaches it is looked at closely.
void Sampler::find_best(const float* logits, int64_t count) {
  float bound = -kInfinity;
  const int64_t groups = (vocab_size_ + kMaxGroup - 1) / kMaxGroup;
  if (count <= groups / 2) {
    group_maxima_.clear();
    gemm::Extent unused;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * kMaxGroup;
      group_maxima_.push_back(
          largest(logits + begin, std::min<int64_t>(kMaxGroup, vocab_size_ - begin), unused));
    }
    const auto nth = group_maxima_.begin() + (count - 1);
    std::nth_element(group_maxima_.begin(), nth, group_maxima_.end(), std::greater<float>());
    bound = *nth;
  }
  candidates_.clear();
  for (int32_t id = 0; id < vocab_size_; ++id) {
    if (logits[id] >= bound) candidates_.push_back({logits[id], 0.0f, id});
  }
  if (static_cast<int64_t>(candidates_.size()) > count) {
    std::nth_element(candidates_.begin(), candidates_.begin() + (count - 1), candidates_.end(),
                     better);
    candidates_.resize(count);
  }
}

}  // namespace quire

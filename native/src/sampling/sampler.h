// Chooses a token from one row of logits. The semantics (order of the filters, ties, random
// numbers) are those of quire.sampling.reference; this does the same in a handful of passes over
// the vocabulary and without a full sort.
#pragma once

#include <cstdint>
#include <vector>

#include "quire.h"
#include "sampling/adjusted_row.h"

namespace quire {

// One per worker: holds scratch for a row, nothing else. A call depends on its arguments alone.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  int64_t most_bytes() const;

  // Throws std::invalid_argument for a number of row `l` that means nothing.
  static void check(const quire_sampling& columns, int64_t l, int32_t vocab_size);

  // Handles row `l` of the step: whether its logits are finite, and if so the choice and the
  // log-probabilities. The logits are afterwards what they were, but for those that a mask forbids.
  void work(const quire_sampling& columns, const quire_output& output, int64_t l, float* logits);

 private:
  static constexpr int64_t kMaxGroup = 64;  // tokens of which find_best first takes the largest
  // Which tokens `choose` may have chosen.
  enum class Kept { kAll, kWeights, kCandidates };
  struct Candidate {
    float logit;
    float weight;
    int32_t id;
  };
  static bool better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }

  int32_t choose(const quire_sampling& columns, int64_t l, const float* logits, float top);
  float find_largest(const float* logits);
  float find_largest_again(const AdjustedRow& row);
  float forbid_by(const uint32_t* mask, float* logits);
  float forbid_before(int32_t first, float* logits, float top);
  int32_t choose_among_equals(const float* logits, float value, double u);
  void weigh(const float* logits, float maximum, float temperature, float min_weight);
  void find_best(const float* logits, int64_t count);
  void collect(const float* logits, float least_weight);
  void keep_min_p(float least_weight);
  void keep_top_p(double p, double total);
  int32_t pick_from_all(double target) const;
  int32_t pick_from_candidates(double u);
  const float* process(const quire_sampling& columns, int64_t l, const float* logits);
  void report(const quire_sampling& columns, const quire_output& output, int64_t l,
              const float* logits, float top);
  void report_best(const quire_output& output, int64_t l, int64_t count, const float* logits);
  void report_listed(const quire_sampling& columns, const quire_output& output, int64_t l,
                     const float* logits);

  int32_t vocab_size_;
  AdjustSpace adjust_space_;
  std::vector<float> weights_;      // of every token
  std::vector<double> block_sums_;  // of weights_
  std::vector<float> block_maxima_;
  std::vector<float> group_maxima_;
  std::vector<Candidate> candidates_;
  Kept kept_ = Kept::kAll;
};

}  // namespace quire

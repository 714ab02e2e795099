#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "sampling/logits_row.h"
#include "sampling/token_mask.h"

namespace quire {
namespace {

// Source: Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators".
uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double uniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(splitmix64(seed ^ splitmix64(counter)) >> 11) * 0x1p-53;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(std::string("sampling: ") + what);
}

double sum_of(const std::vector<double>& values) {
  double total = 0;
  for (double value : values) total += value;
  return total;
}

}  // namespace

Sampler::Sampler(int32_t vocab_size) : vocab_size_(vocab_size), adjust_space_(vocab_size) {
  const int64_t num_blocks = (int64_t{vocab_size} + kBlock - 1) / kBlock;
  weights_.reserve((vocab_size + kLanes - 1) / kLanes * kLanes);
  block_sums_.reserve(num_blocks);
  block_maxima_.reserve(num_blocks);
  group_maxima_.reserve((int64_t{vocab_size} + kMaxGroup - 1) / kMaxGroup);
  candidates_.reserve(vocab_size);
}

// Nothing grows beyond what was reserved.
int64_t Sampler::most_bytes() const {
  const size_t bytes = weights_.capacity() * sizeof weights_[0] +
                       block_sums_.capacity() * sizeof block_sums_[0] +
                       block_maxima_.capacity() * sizeof block_maxima_[0] +
                       group_maxima_.capacity() * sizeof group_maxima_[0] +
                       candidates_.capacity() * sizeof candidates_[0];
  return static_cast<int64_t>(bytes) + adjust_space_.most_bytes();
}

void Sampler::check(const quire_sampling& columns, int64_t l, int32_t vocab_size) {
  const auto is_share = [l](const float* column) {
    return !column || (column[l] >= 0 && column[l] <= 1);
  };
  require(columns.temperature[l] >= 0, "the temperature is negative or no number");
  require(!columns.top_k || columns.top_k[l] >= 0, "top_k is negative");
  require(is_share(columns.top_p), "top_p is not in [0, 1]");
  require(is_share(columns.min_p), "min_p is not in [0, 1]");
  require(!columns.repetition_penalty || columns.repetition_penalty[l] > 0,
          "repetition_penalty is not positive");
  require(!columns.mass_from || (columns.mass_from[l] >= -1 && columns.mass_from[l] < vocab_size),
          "no token is at mass_from");
  require(!columns.chosen || (columns.chosen[l] >= -1 && columns.chosen[l] < vocab_size),
          "no such token is chosen");
}

void Sampler::work(const quire_sampling& columns, const quire_output& output, int64_t l,
                   float* logits) {
  float top = find_largest(logits);
  output.not_finite[l] = !std::isfinite(top);
  output.no_choice[l] = false;
  if (!std::isfinite(top)) return;
  const bool is_reported =
      output.logprob_ids && columns.num_logprobs && columns.num_logprobs[l] >= 0;
  if (columns.chosen && columns.chosen[l] >= 0) {
    output.sampled[l] = columns.chosen[l];
    if (is_reported) report(columns, output, l, logits, top);
    return;
  }
  if (const uint32_t* mask = mask_of(columns.mask, l, vocab_size_)) top = forbid_by(mask, logits);
  if (columns.mass_from && columns.mass_from[l] >= 0) {
    top = forbid_before(columns.mass_from[l], logits, top);
  }
  const bool is_processed =
      columns.logprobs_kind && columns.logprobs_kind[l] >= QUIRE_PROCESSED_LOGPROBS;
  {
    const AdjustedRow row(columns, l, logits, adjust_space_);
    const float highest = row.is_changed() ? find_largest_again(row) : top;
    output.no_choice[l] = highest == -kInfinity;
    if (highest == -kInfinity) return;
    output.sampled[l] = choose(columns, l, row.logits(), highest);
    if (is_reported && is_processed) {
      const float* processed = process(columns, l, row.logits());
      report(columns, output, l, processed, find_largest(processed));
    }
  }
  if (is_reported && !is_processed) report(columns, output, l, logits, top);
}

// Forbids the tokens before `first` if those from it on are together more likely than each of them.
// `top` is the largest of `logits`. Returns the largest that is left.
float Sampler::forbid_before(int32_t first, float* logits, float top) {
  gemm::Extent unused;
  const int64_t size = int64_t{vocab_size_} - first;
  const float later = largest(logits + first, size, unused);
  if (later == -kInfinity || std::isinf(top)) return top;
  const double mass = log_sum_exp(logits + first, size, later, kBlock);
  if (mass <= largest(logits, first, unused)) return top;
  std::fill_n(logits, first, -kInfinity);
  return find_largest(logits);
}

// `top` is the largest of `logits`, which hold no NaN.
int32_t Sampler::choose(const quire_sampling& columns, int64_t l, const float* logits, float top) {
  const float temperature = columns.temperature[l];
  kept_ = Kept::kAll;
  if (temperature == 0.0f) return choose_among_equals(logits, top, 0.0);
  const double u = uniform(columns.seeds[l], columns.counters[l]);
  if (std::isinf(top)) return choose_among_equals(logits, top, u);
  const float min_p = columns.min_p ? columns.min_p[l] : 0.0f;
  const float top_p = columns.top_p ? columns.top_p[l] : 1.0f;
  const int64_t top_k = columns.top_k ? columns.top_k[l] : 0;
  double total = 0;
  kept_ = Kept::kCandidates;
  if (top_k > 0 && top_k < vocab_size_) {
    find_best(logits, top_k);
    const float factor = kLog2E / temperature;
    for (Candidate& c : candidates_) {
      c.weight = gemm::first_lane(exp2_nonpositive(splat((c.logit - top) * factor)));
    }
    keep_min_p(min_p);
    for (const Candidate& c : candidates_) total += c.weight;
  } else {
    weigh(logits, top, temperature, min_p);
    total = sum_of(block_sums_);
    if (top_p >= 1.0f) {
      kept_ = min_p > 0.0f ? Kept::kWeights : Kept::kAll;
      return pick_from_all(u * total);
    }
    // All tokens below this weight together are too few to be needed for the mass top_p.
    collect(logits, static_cast<float>((1.0 - top_p) * total / vocab_size_));
  }
  if (top_p < 1.0f) keep_top_p(top_p, total);
  return pick_from_candidates(u);
}

// The largest logit, NaN if there is one, and in block_maxima_ that of each block.
float Sampler::find_largest(const float* logits) {
  block_maxima_.clear();
  gemm::Extent extent;
  for (int64_t begin = 0; begin < vocab_size_; begin += kBlock) {
    block_maxima_.push_back(
        largest(logits + begin, std::min<int64_t>(kBlock, vocab_size_ - begin), extent));
  }
  if (std::isnan(extent.top())) return extent.top();
  return *std::max_element(block_maxima_.begin(), block_maxima_.end());
}

// The same after a change, for the blocks that it touched.
float Sampler::find_largest_again(const AdjustedRow& row) {
  gemm::Extent unused;
  for (size_t block = 0; block < block_maxima_.size(); ++block) {
    const int64_t begin = static_cast<int64_t>(block) * kBlock;
    if (row.is_touched(block)) {
      block_maxima_[block] =
          largest(row.logits() + begin, std::min<int64_t>(kBlock, vocab_size_ - begin), unused);
    } else if (row.has_allowed()) {
      block_maxima_[block] = -kInfinity;
    }
  }
  return *std::max_element(block_maxima_.begin(), block_maxima_.end());
}

// Forbids what the mask leaves out. The largest logit of the rest; block_maxima_ follow.
float Sampler::forbid_by(const uint32_t* mask, float* logits) {
  gemm::Extent unused;
  for (size_t block = 0; block < block_maxima_.size(); ++block) {
    const int64_t begin = static_cast<int64_t>(block) * kBlock;
    const int64_t end = std::min<int64_t>(begin + kBlock, vocab_size_);
    if (forbid(mask, logits, begin, end)) {
      block_maxima_[block] = largest(logits + begin, end - begin, unused);
    }
  }
  return *std::max_element(block_maxima_.begin(), block_maxima_.end());
}

// Of the tokens whose logit is `value`, the largest one, the one at u. Only blocks that reach the
// value are looked at.
int32_t Sampler::choose_among_equals(const float* logits, float value, double u) {
  int64_t count = 0;
  const auto find = [&](int64_t place) {
    count = 0;
    for (size_t block = 0; block < block_maxima_.size(); ++block) {
      if (block_maxima_[block] != value) continue;
      const int64_t begin = static_cast<int64_t>(block) * kBlock;
      for (int64_t id = begin; id < std::min<int64_t>(begin + kBlock, vocab_size_); ++id) {
        if (logits[id] == value && count++ == place) return static_cast<int32_t>(id);
      }
    }
    return 0;
  };
  if (u == 0.0) return find(0);
  find(-1);
  return find(std::min(static_cast<int64_t>(u * count), count - 1));
}

// weights_ = exp((logit - maximum) / temperature), 0 below min_weight; and their block sums.
void Sampler::weigh(const float* logits, float maximum, float temperature, float min_weight) {
  weights_.resize((vocab_size_ + kLanes - 1) / kLanes * kLanes);
  block_sums_.clear();
  const float factor = kLog2E / temperature;
  for (int64_t begin = 0; begin < vocab_size_; begin += kBlock) {
    F32x16 sum = {};
    for (int64_t i = begin; i < std::min<int64_t>(begin + kBlock, vocab_size_); i += kLanes) {
      F32x16 w = exp2_nonpositive((load_logits(logits, i, vocab_size_) - maximum) * factor);
      w = gemm::select(w < min_weight, splat(0.0f), w);
      gemm::store(weights_.data() + i, w);
      sum = sum + w;
    }
    block_sums_.push_back(sum_lanes(sum));
  }
}

// candidates_ = the tokens whose weight is at least this, and not 0.
void Sampler::collect(const float* logits, float least_weight) {
  candidates_.clear();
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const float weight = weights_[id];
    if (weight >= least_weight && weight > 0.0f) candidates_.push_back({logits[id], weight, id});
  }
}

// The best candidate, whose weight is 1, always stays.
void Sampler::keep_min_p(float least_weight) {
  const auto is_below = [least_weight](const Candidate& c) { return c.weight < least_weight; };
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_below),
                    candidates_.end());
}

// Keeps the shortest list of best candidates whose mass reaches p of `total`: a selection by mass,
// which halves what is in question instead of sorting it.
void Sampler::keep_top_p(double p, double total) {
  const double target = p * total;
  double mass = 0;
  auto begin = candidates_.begin();
  auto end = candidates_.end();
  while (end - begin > 32) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, better);
    double upper = 0;
    for (auto c = begin; c != middle; ++c) upper += c->weight;
    if (mass + upper >= target) {
      end = middle;
    } else {
      mass += upper;
      begin = middle;
    }
  }
  std::sort(begin, end, better);
  while (begin != end) {
    mass += begin->weight;
    ++begin;
    if (mass >= target) break;
  }
  candidates_.erase(std::max(begin, candidates_.begin() + 1), candidates_.end());
}

// Inverse distribution function over all tokens in order of their ids: by blocks first.
int32_t Sampler::pick_from_all(double target) const {
  double mass = 0;
  size_t block = 0;
  for (; block + 1 < block_sums_.size() && mass + block_sums_[block] <= target; ++block) {
    mass += block_sums_[block];
  }
  int32_t last = 0;
  for (int64_t id = static_cast<int64_t>(block) * kBlock; id < vocab_size_; ++id) {
    if (weights_[id] == 0.0f) continue;
    last = static_cast<int32_t>(id);
    mass += weights_[id];
    if (mass > target) break;
  }
  return last;
}

int32_t Sampler::pick_from_candidates(double u) {
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double target = u * total;
  double mass = 0;
  int32_t last = candidates_.front().id;
  for (const Candidate& c : candidates_) {
    if (c.weight == 0.0f) continue;
    last = c.id;
    mass += c.weight;
    if (mass > target) break;
  }
  return last;
}

}  // namespace quire

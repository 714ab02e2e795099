#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "simd/vector.h"

namespace quire {
namespace {

constexpr int64_t kBlock = 1024;   // tokens whose weights are summed before going to double
constexpr int64_t kMaxGroup = 64;  // tokens of which find_best first looks at the largest only
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;

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

// Logits i .. i + 15, lanes behind the end at minus infinity.
QUIRE_INLINE F32x16 load_logits(const float* logits, int64_t i, int64_t size) {
  return gemm::first_lanes(load_some(logits, QUIRE_F32, i, size - i), size - i, -kInfinity);
}

// The largest logit, a NaN left aside; `extent` knows whether there is one.
float largest(const float* logits, int64_t size, gemm::Extent& extent) {
  F32x16 top[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
  for (int64_t i = 0; i < size; i += kLanes) {
    const F32x16 v = load_logits(logits, i, size);
    F32x16& t = top[i / kLanes % 4];
    t = maximum(v, t);
    extent.add(v);
  }
  return max_lanes(maximum(maximum(top[0], top[1]), maximum(top[2], top[3])));
}

double log_sum_exp(const float* logits, int64_t size, float top) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    F32x16 sum = {};
    for (int64_t i = begin; i < std::min(begin + kBlock, size); i += kLanes) {
      sum = sum + exp2_nonpositive((load_logits(logits, i, size) - top) * kLog2E);
    }
    total += sum_lanes(sum);
  }
  return top + std::log(total);
}

double sum_of(const std::vector<double>& values) {
  double total = 0;
  for (double value : values) total += value;
  return total;
}

// The bias of a row, in effect for the lifetime of the object.
class BiasedRow {
 public:
  BiasedRow(const quire_sampling& columns, int64_t l, float* logits) : logits_(logits) {
    if (!columns.bias_starts) return;
    for (int32_t i = columns.bias_starts[l]; i < columns.bias_starts[l + 1]; ++i) {
      const int32_t id = columns.bias_ids[i];
      const float value = columns.bias_values[i];
      before_.push_back({id, logits[id]});
      logits[id] = std::isinf(value) ? value : logits[id] + value;
    }
  }
  bool any() const { return !before_.empty(); }
  // Backwards: an id may stand twice in a row.
  ~BiasedRow() {
    for (size_t i = before_.size(); i-- > 0;) logits_[before_[i].id] = before_[i].logit;
  }

 private:
  struct Saved {
    int32_t id;
    float logit;
  };
  float* logits_;
  std::vector<Saved> before_;
};

}  // namespace

Sampler::Sampler(int32_t vocab_size) : vocab_size_(vocab_size) {
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
  return static_cast<int64_t>(bytes);
}

void Sampler::work(const quire_sampling& columns, const quire_output& output, int64_t l,
                   float* logits) {
  const float top = find_largest(logits);
  output.not_finite[l] = !std::isfinite(top);
  if (!std::isfinite(top)) return;
  {
    const BiasedRow biased(columns, l, logits);
    output.sampled[l] = choose(columns, l, logits, biased.any() ? find_largest(logits) : top);
  }
  const int32_t count = columns.num_logprobs ? columns.num_logprobs[l] : -1;
  if (output.logprob_ids && count >= 0) report(output, l, count, logits, top);
}

// `top` is the largest of `logits`, which hold no NaN.
int32_t Sampler::choose(const quire_sampling& columns, int64_t l, const float* logits, float top) {
  const float temperature = columns.temperature[l];
  if (temperature == 0.0f) return choose_among_equals(logits, top, 0.0);
  const double u = uniform(columns.seeds[l], columns.counters[l]);
  if (std::isinf(top)) return choose_among_equals(logits, top, u);
  const float min_p = columns.min_p ? columns.min_p[l] : 0.0f;
  const float top_p = columns.top_p ? columns.top_p[l] : 1.0f;
  const int64_t top_k = columns.top_k ? columns.top_k[l] : 0;
  double total = 0;
  if (top_k > 0 && top_k < vocab_size_) {
    find_best(logits, top_k);
    const float factor = kLog2E / temperature;
    for (Candidate& c : candidates_) {
      const float weight = gemm::first_lane(exp2_nonpositive(splat((c.logit - top) * factor)));
      c.weight = weight < min_p ? 0.0f : weight;
      total += c.weight;
    }
  } else {
    weigh(logits, top, temperature, min_p);
    total = sum_of(block_sums_);
    if (top_p >= 1.0f) return pick_from_all(u * total);
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

// candidates_ = the tokens whose weight is at least this, and not 0.
void Sampler::collect(const float* logits, float least_weight) {
  candidates_.clear();
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const float weight = weights_[id];
    if (weight >= least_weight && weight > 0.0f) candidates_.push_back({logits[id], weight, id});
  }
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

void Sampler::report(const quire_output& output, int64_t l, int32_t count, const float* logits,
                     float top) {
  const double normal = log_sum_exp(logits, vocab_size_, top);
  const auto logprob = [&](float logit) { return static_cast<float>(logit - normal); };
  const float chosen = logits[output.sampled[l]];
  int32_t rank = 1;
  for (int32_t id = 0; id < vocab_size_; ++id) rank += logits[id] > chosen;
  output.sampled_logprobs[l] = logprob(chosen);
  output.sampled_ranks[l] = rank;
  const int64_t wanted = std::min<int64_t>({count, output.logprobs_width, vocab_size_});
  if (wanted == 0) return;
  find_best(logits, wanted);
  std::sort(candidates_.begin(), candidates_.end(), better);
  for (int64_t i = 0; i < wanted; ++i) {
    output.logprob_ids[l * output.logprobs_width + i] = candidates_[i].id;
    output.logprobs[l * output.logprobs_width + i] = logprob(candidates_[i].logit);
  }
}

}  // namespace quire

// A row of logits as its request changes it before a token is chosen. Only the tokens that the
// request names are looked at: nothing here goes over the vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include "quire.h"

namespace quire {

constexpr int64_t kBlock = 1024;    // tokens whose logits share a maximum, and whose weights a sum
constexpr int64_t kMostBiases = 2;  // most entries of a row's bias, as a multiple of the vocabulary

// Scratch memory for adjusting a row. One per sampler; unchanged after each row.
class AdjustSpace {
 public:
  explicit AdjustSpace(int32_t vocab_size);
  int64_t most_bytes() const;

 private:
  friend class AdjustedRow;
  int32_t vocab_size_;
  std::vector<float> forbidden_;  // a row of minus infinities; empty before the first use
  std::vector<float> before_;     // logits that were changed, in the order of the changes
  std::vector<uint8_t> touched_;  // of each block, whether one of its logits was changed
};

// The adjustment lasts for the lifetime of the object; the destructor restores `logits`.
class AdjustedRow {
 public:
  AdjustedRow(const quire_sampling& columns, int64_t l, float* logits, AdjustSpace& space);
  ~AdjustedRow();
  AdjustedRow(const AdjustedRow&) = delete;
  AdjustedRow& operator=(const AdjustedRow&) = delete;

  // The changed row.
  const float* logits() const { return row_; }
  bool is_changed() const { return is_changed_; }
  // Whether all tokens are forbidden but some of the touched blocks.
  bool has_allowed() const { return allowed_.begin != allowed_.end; }
  bool is_touched(int64_t block) const { return space_.touched_[block] != 0; }

 private:
  struct Span {
    int32_t begin = 0;
    int32_t end = 0;
  };
  static Span span_of(const quire_token_lists& lists, int64_t l);
  void allow(const quire_token_lists& lists, const float* logits);
  void add_bias(const quire_token_lists& lists);
  void penalise(const quire_sampling& columns, int64_t l);
  void put(int32_t id, float logit);
  void restore(const quire_token_lists& lists, Span span);

  const quire_sampling& columns_;
  AdjustSpace& space_;
  float* row_;
  Span allowed_;
  Span bias_;
  Span seen_;
  bool is_changed_;
};

}  // namespace quire

// Which op of a step first gave a request numbers that are not finite.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/model.h"

namespace quire {

// Looks at what each op of one step has computed, in order; which values these are, the op's kind
// says. Each row of a value belongs to one request.
class FiniteWatch {
 public:
  // `first_ops` has an entry for each request: the op, -1 as long as all is finite.
  FiniteWatch(const Step& step, int32_t* first_ops);

  // Once op number `index` is done.
  void look(int32_t index, const ModelOp& op);

  // For the kinds of ops: a value with so many rows (quire_rows), or one with a row for each token,
  // of which only those were computed whose logits are wanted.
  void look_at_rows(const quire_view& view, int32_t rows);
  void look_at_taken(const quire_view& view);

 private:
  const Step& step_;
  int32_t* const first_ops_;
  std::vector<int32_t> seq_of_token_;
  std::vector<std::atomic<bool>> found_;  // for each request, of the present op
};

}  // namespace quire

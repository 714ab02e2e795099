// Finds the first op of a step that computed a number for a request that is not finite.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/model.h"

namespace quire {

// Checks the outputs of each op of a step, in order. The kind of op selects the values to check.
// Each row of a value belongs to one request.
class FiniteWatch {
 public:
  // `first_ops` has an entry for each request: the op, -1 as long as all is finite.
  FiniteWatch(const Step& step, int32_t* first_ops);

  // Once op number `index` is done.
  void look(int32_t index, const ModelOp& op);

  // Called by kinds of ops. look_at_rows: a value with `rows` (quire_rows). look_at_taken: a value
  // with a row for each token, of which only the rows that get logits were computed.
  void look_at_rows(const quire_view& view, int32_t rows);
  void look_at_taken(const quire_view& view);
  const Model& model() const { return step_.model; }

 private:
  const Step& step_;
  int32_t* const first_ops_;
  std::vector<int32_t> seq_of_token_;
  std::vector<std::atomic<bool>> found_;  // for each request, of the present op
};

}  // namespace quire

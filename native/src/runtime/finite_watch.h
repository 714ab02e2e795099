// Which op of a step first gave a request numbers that are not finite.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/model.h"

namespace quire {

// Looks at what each op of one step has written, in order. Of the requests of the step alone: a row
// belongs to one of them.
class FiniteWatch {
 public:
  // `first_ops` has an entry for each request: the op, -1 as long as all is finite.
  FiniteWatch(const Step& step, int32_t* first_ops);

  // Once op number `index` is done.
  void look(int32_t index, const quire_op& op);

 private:
  void look_at(const quire_view& view, const int32_t* tokens, int64_t count);
  void look_at_rows(const quire_view& view, int32_t rows);

  const Step& step_;
  int32_t* const first_ops_;
  std::vector<int32_t> seq_of_token_;
  std::vector<std::atomic<bool>> found_;  // for each request, of the present op
};

}  // namespace quire

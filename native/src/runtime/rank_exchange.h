// RankExchange: how the ranks of a model complete the values of which each has computed a part.
//
// Ranks that share memory write their parts to one place, so that completing a value is waiting for
// the others. Ranks without shared memory call what Python has set. Used by ops, on the thread that
// runs the step.
#pragma once

#include <cstdint>
#include <memory>

#include "quire.h"
#include "runtime/memory.h"

namespace quire {

struct RankControl;

class RankExchange {
 public:
  // `values_bytes`: of the exchanged values in the workspace, which begin at `workspace`.
  RankExchange(const quire_ranks& ranks, uint8_t* workspace, int64_t values_bytes);

  bool is_split() const { return ranks_.num_ranks > 1; }
  bool is_shared() const { return ranks_.shared_fd >= 0; }

  // Memory for values that are exchanged within an op: all ranks ask for the same, in one order.
  std::unique_ptr<Reservation> reserve(size_t bytes);

  // A step begins: no rank still reads what the last step has exchanged.
  void begin_step();
  // Completes a value of the ranks of a stage. Throws if a rank has failed, or does something else.
  void complete(int32_t number, uint8_t* data, int64_t rows, int64_t row_bytes);
  // Takes a value from the stage before, or hands one on.
  void pass(int32_t number, uint8_t* data, int64_t rows, int64_t row_bytes) const;
  // Waits until every rank has come here.
  void wait(int32_t number);

 private:
  int64_t extend(size_t bytes);

  const quire_ranks ranks_;
  int64_t file_bytes_ = 0;
  std::unique_ptr<Reservation> control_memory_;
  RankControl* control_ = nullptr;
  uint32_t count_ = 0;  // of this rank's waits
  uint64_t step_ = 0;
};

}  // namespace quire

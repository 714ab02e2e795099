// Lends a core to a compute thread that has none.
//
// Where other processes keep the cores busy, the kernel may take the core from a compute thread in
// the midst of a piece of work, for some milliseconds. The threads that wait for this piece have
// cores and nothing to do. One of them moves the thread to its own core and sleeps, so that the
// piece is finished at once.
//
// Used by Pool; knows nothing of regions.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace quire {

// One thread as the others see it. Each loan goes kFree -> kLending -> kLent -> kAway -> kFree.
class ComputeThread {
 public:
  // Names the calling thread as the one that this object is about.
  void set_self();

  // Nanoseconds of processor time that the thread has had; -1 where the system does not tell.
  int64_t cpu_time_ns() const;

  // Moves the thread to the core of the caller, who must sleep next. Does nothing and returns false
  // while another loan lasts, where `is_needed` says no, and where the thread has only one core
  // to choose from.
  template <class IsNeeded>
  bool lend(IsNeeded is_needed) {
    int expected = kFree;
    if (!state_.compare_exchange_strong(expected, kLending)) return false;
    const bool is_lent = is_needed() && move_here();
    state_.store(is_lent ? kLent : kFree);
    return is_lent;
  }

  // Waits for a `lend` in progress. Whether the thread now has the core of another.
  bool is_lent() const;

  // Moves the thread from the caller's core to any other that it may use: the end of a loan for who
  // lent, and for who was lent to.
  void send_away();

  // Called by the thread itself: it may run wherever it could before the loan.
  void settle();

  // Forgets all loans, where the thread is another one from now on.
  void reset() { state_.store(kFree); }

 private:
  enum State : int { kFree, kLending, kLent, kAway };

  bool move_here();

  std::atomic<pid_t> tid_{0};
  std::atomic<int> state_{kFree};
  cpu_set_t allowed_{};  // before the loan
};

}  // namespace quire

// The compute threads: the caller of a parallel region works on it at once, and the other threads
// join in while there is something left to do.
//
// Used by the step executor and by weight packing.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "threads/core_loan.h"
#include "threads/worker.h"

namespace quire {

// The numbers from first to last - 1.
struct Span {
  int64_t first;
  int64_t last;
};

// The caller of run() is worker 0. The helpers wait for regions, first spinning for some tens of
// microseconds (regions follow each other closely), then asleep in a futex, so that an idle engine
// costs nothing. A region never waits for a helper that did not come: where other processes keep
// the cores busy, the caller does the work alone. Whoever waits for a thread that lost its core in
// the midst of a piece lends it a core (core_loan.h). A child process that inherits a pool through
// fork gets helpers of its own at first use.
class Pool {
 public:
  Pool(int num_threads, bool pin);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return num_threads_; }

  // Changes with every region that ends and every ticket that is taken. Any thread may ask.
  uint64_t progress() const {
    uint64_t tickets = 0;
    for (const Share& share : shares_) tickets += share.taken.load(std::memory_order_relaxed);
    return (regions_.load(std::memory_order_relaxed) << 32) ^ tickets;
  }

  // Runs body(worker) on the caller and on every helper that comes before the caller is done, and
  // returns when all who came are done: together they must do all the work, which they share by
  // the tickets of Worker. With fewer than two `units` of work the caller stays alone, and so does
  // one that finds the helpers at work for another. `body` must not throw.
  template <class Body>
  void run(int64_t units, Body&& body) {
    enter(
        units, [](void* context, Worker& worker) { (*static_cast<Body*>(context))(worker); },
        &body);
  }

  // Runs body(span) for spans of `grain` neighbours that together are 0 .. count - 1.
  template <class Body>
  void spans(int64_t count, int64_t grain, Body&& body) {
    const int64_t units = (count + grain - 1) / grain;
    run(units, [&](Worker& worker) {
      for (int64_t unit; (unit = worker.grab_own(units)) < units;) {
        body(Span{unit * grain, std::min(count, (unit + 1) * grain)});
      }
    });
  }

  // Runs body(unit) for each unit from 0 to count - 1.
  template <class Body>
  void each(int64_t count, Body&& body) {
    run(count, [&](Worker& worker) {
      for (int64_t unit; (unit = worker.grab_own(count)) < count;) body(unit);
    });
  }

 private:
  using Entry = void (*)(void*, Worker&);
  struct Region {
    Entry entry;
    void* context;
  };
  struct Start {
    Pool* pool;
    int index;
  };
  struct Helper {
    ComputeThread thread;
    std::atomic<bool> is_inside{false};  // of the region
  };

  void enter(int64_t units, Entry entry, void* context);
  void share(Worker& caller);
  void wait_for_helpers(uint32_t entered);
  ComputeThread* lend_to_helper();
  void lend_to_caller(int index);
  void end_loan_to_caller();
  bool take();
  void start_helpers();
  static void* thread_main(void* start);
  void serve(int index);
  bool join(int index, uint32_t& seen, int64_t spin_ns);

  const int num_threads_;
  const bool pin_;
  std::vector<pthread_t> threads_;
  std::vector<Share> shares_;    // one for each worker
  std::vector<Helper> helpers_;  // of workers 1, 2, ...
  ComputeThread caller_;
  std::atomic<uint64_t> owner_{0};  // see pool.cpp
  Region region_{};                 // while the gate is open, and until all who came have left
  std::atomic<bool> stopping_{false};

  // Each on a cache line of its own: they are written by different threads at different moments.
  alignas(64) std::atomic<uint32_t> gate_{0};  // see pool.cpp
  alignas(64) std::atomic<uint64_t> regions_{0};
  alignas(64) std::atomic<uint32_t> left_{0};  // helpers that are done with the region
  alignas(64) std::atomic<int> sleeping_helpers_{0};
  alignas(64) std::atomic<int> sleeping_callers_{0};
  alignas(64) std::atomic<bool> caller_is_inside_{false};  // of a region that it shares
  int lender_ = 0;                                         // the helper whose core the caller has
};

}  // namespace quire

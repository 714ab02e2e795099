// The compute threads: a parallel region is entered once per step, and the workers meet at barriers
// inside it.
//
// Used by the step executor and by weight packing; knows nothing of what runs in it.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/worker.h"

namespace quire {

// The caller of run() is worker 0; the other threads wait for regions, first spinning for some tens
// of microseconds (steps follow each other closely), then asleep in a futex, so that an idle engine
// costs nothing. A child process that inherits a pool through fork gets new threads at first use.
class Pool {
 public:
  Pool(int num_threads, bool pin);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return num_threads_; }

  // Changes with every barrier that is passed and every ticket that is taken. Any thread may ask.
  uint64_t progress() const {
    return (uint64_t{phase_.load(std::memory_order_relaxed)} << 32) ^
           static_cast<uint64_t>(tickets_.load(std::memory_order_relaxed));
  }

  // Runs body(worker) once on every worker and returns when all are done. One region at a time:
  // callers from several threads take turns. `body` must not throw.
  template <class Body>
  void run(Body&& body) {
    enter([](void* context, Worker& worker) { (*static_cast<Body*>(context))(worker); }, &body);
  }

 private:
  friend class Worker;
  using Entry = void (*)(void*, Worker&);
  struct Start {
    Pool* pool;
    int index;
    uint32_t epoch;
  };

  void enter(Entry entry, void* context);
  void start_threads();
  static void* thread_main(void* start);
  void serve(int index, uint32_t epoch);
  void barrier();

  const int num_threads_;
  const bool pin_;
  pid_t owner_ = 0;
  std::mutex caller_;
  std::vector<pthread_t> threads_;
  Entry entry_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;

  // Each on a cache line of its own: they are written by different threads at different moments.
  alignas(64) std::atomic<uint32_t> region_{0};
  alignas(64) std::atomic<int32_t> region_sleepers_{0};
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int32_t> phase_sleepers_{0};
  alignas(64) std::atomic<int64_t> tickets_{0};
};

// The part [first, last) of `count` units that belongs to a worker: contiguous and even.
struct Span {
  int64_t first;
  int64_t last;
};

inline Span share(int64_t count, const Worker& worker) {
  const int64_t n = worker.count();
  return {count * worker.index() / n, count * (worker.index() + 1) / n};
}

}  // namespace quire

// One thread's view of a parallel region: who it is, and how to meet the others.
#pragma once

#include <cstdint>

namespace quire {

class Pool;

// Valid inside Pool::run only. Every worker must pass the same sequence of barriers.
class Worker {
 public:
  Worker(Pool& pool, int index) : pool_(pool), index_(index) {}

  int index() const { return index_; }
  int count() const;

  // Waits for all workers, and starts the tickets again at 0.
  void barrier();

  // The next unit of the work between two barriers, each number handed out once: dynamic sharing,
  // so that a core that somebody else borrows for a moment delays nobody.
  int64_t grab();

 private:
  Pool& pool_;
  int index_;
};

}  // namespace quire

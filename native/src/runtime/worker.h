// One thread's view of a parallel region: who it is, and what it does next.
#pragma once

#include <atomic>
#include <cstdint>

namespace quire {

// Valid inside Pool::run only. All work of a region is shared out by tickets, so that a thread that
// comes late, or whose core somebody else borrows for a moment, delays nobody.
class Worker {
 public:
  Worker(std::atomic<int64_t>& tickets, int index) : tickets_(tickets), index_(index) {}

  // From 0 to Pool::size() - 1, each at most once in a region; 0 is the caller.
  int index() const { return index_; }

  // The next unit of the region's work, from 0 on, each number handed out once.
  int64_t grab() { return tickets_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t>& tickets_;
  int index_;
};

}  // namespace quire

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

// The units of one worker, one after the other: a span of neighbours at a time.
class Tickets {
 public:
  Tickets(Worker& worker, int64_t span) : worker_(worker), span_(span) {}

  int64_t next() {
    if (unit_ % span_ == 0) unit_ = worker_.grab() * span_;
    return unit_++;
  }

 private:
  Worker& worker_;
  const int64_t span_;
  int64_t unit_ = 0;
};

}  // namespace quire

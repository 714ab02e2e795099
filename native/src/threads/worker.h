// A thread of a parallel region: its number, and the work that it takes.
#pragma once

#include <atomic>
#include <cstdint>

namespace quire {

// How many tickets of a share were taken, on a cache line of its own.
struct alignas(64) Share {
  std::atomic<int64_t> taken{0};
};

// Valid inside Pool::run only. All work of a region is shared out by tickets, so that a thread that
// comes late, or that loses its core for a moment, delays no other. A region uses one of the two
// ways of taking them.
class Worker {
 public:
  Worker(Share* shares, int num_shares, int index)
      : shares_(shares), num_shares_(num_shares), index_(index) {}

  // From 0 to Pool::size() - 1, each at most once in a region; 0 is the caller.
  int index() const { return index_; }

  // The next ticket, from 0 on, each number handed out once.
  int64_t grab() { return take(0); }

  // The next ticket of 0 .. total - 1, or `total` when none is left. A worker's own share comes
  // first: neighbours, at the same place in every region, and a counter that no other worker
  // changes as long as its own share lasts. Then come the tickets that others have left.
  int64_t grab_own(int64_t total) {
    for (; tried_ < num_shares_; ++tried_) {
      const int owner = (index_ + tried_) % num_shares_;
      const int64_t ticket = total * owner / num_shares_ + take(owner);
      if (ticket < total * (owner + 1) / num_shares_) return ticket;
    }
    return total;
  }

 private:
  int64_t take(int share) { return shares_[share].taken.fetch_add(1, std::memory_order_relaxed); }

  Share* const shares_;
  const int num_shares_;
  const int index_;
  int tried_ = 0;  // shares that have no more tickets
};

// The units of one worker, one after the other: a span of neighbours at a time.
class Tickets {
 public:
  // All in order.
  Tickets(Worker& worker, int64_t span) : worker_(worker), span_(span) {}
  // Of so many `units`, its own share first.
  Tickets(Worker& worker, int64_t span, int64_t units)
      : worker_(worker), span_(span), total_((units + span - 1) / span) {}

  int64_t next() {
    if (unit_ % span_ == 0) unit_ = grab() * span_;
    return unit_++;
  }

 private:
  int64_t grab() { return total_ < 0 ? worker_.grab() : worker_.grab_own(total_); }

  Worker& worker_;
  const int64_t span_;
  const int64_t total_ = -1;  // spans, if its own share comes first
  int64_t unit_ = 0;
};

}  // namespace quire

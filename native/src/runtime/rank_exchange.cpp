#include "runtime/rank_exchange.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace quire {

constexpr int kMaxRanks = 64;

// At the start of the shared file.
struct RankControl {
  std::atomic<uint32_t> failed;  // 1 + the rank that failed; set by ranks and by who watches them
  std::atomic<uint32_t> arrivals;
  std::atomic<int32_t> sleepers;
  struct alignas(64) Slot {
    std::atomic<uint32_t> count;  // waits that the rank has come to
    std::atomic<uint64_t> tags[2];  // what it waits for: of even and of odd counts
    std::atomic<uint64_t> waited_ns;  // for other ranks; quire/ranks/group.py reads it
  } slots[kMaxRanks];
};

namespace {

constexpr int64_t kControlBytes = 8192;
constexpr int64_t kPage = 4096;
constexpr int64_t kSpinNs = 20'000;
constexpr int64_t kSleepNs = 50'000'000;  // between two looks at `failed`
static_assert(sizeof(RankControl) <= kControlBytes);
static_assert(offsetof(RankControl, slots) == 64 && sizeof(RankControl::Slot) == 64 &&
              offsetof(RankControl::Slot, waited_ns) == 24);

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

// The words are shared by processes, so the futexes are not private.
void futex_sleep(std::atomic<uint32_t>& word, uint32_t expected) {
  timespec limit{0, kSleepNs};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Python knows this beginning: the group is lost then, and not the step alone.
[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("ranks: " + what); }

std::string text_of(uint64_t tag) {
  const auto number = static_cast<int32_t>(tag & 0xffffffff) - 1;
  return "step " + std::to_string(tag >> 32) + ", exchange " + std::to_string(number);
}

}  // namespace

RankExchange::RankExchange(const quire_ranks& ranks, uint8_t* workspace, int64_t values_bytes)
    : ranks_(ranks) {
  if (ranks.num_ranks < 1 || ranks.num_ranks > kMaxRanks || ranks.rank < 0 ||
      ranks.rank >= ranks.num_ranks || ranks.shared_offset % kPage != 0 || values_bytes < 0) {
    throw std::invalid_argument("ranks: a rank is not from 0 to " + std::to_string(kMaxRanks - 1));
  }
  if (!is_shared()) return;
  control_memory_ = std::make_unique<Reservation>(kControlBytes, ranks.shared_fd,
                                                  extend(kControlBytes));
  control_ = reinterpret_cast<RankControl*>(control_memory_->data());
  count_ = control_->slots[ranks.rank].count;  // goes on where a model before this one has ended
  if (values_bytes == 0) return;
  const int64_t offset = extend(values_bytes);
  void* place = workspace + ranks.shared_offset;
  if (mmap(place, values_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ranks.shared_fd,
           offset) == MAP_FAILED) {
    throw std::bad_alloc();
  }
}

int64_t RankExchange::extend(size_t bytes) {
  const int64_t offset = file_bytes_;
  file_bytes_ += static_cast<int64_t>(round_up(bytes, kPage));
  struct stat status;
  if (fstat(ranks_.shared_fd, &status) != 0) throw std::bad_alloc();
  // Ranks that do so at once ask for the same size.
  if (status.st_size < file_bytes_ && ftruncate(ranks_.shared_fd, file_bytes_) != 0) {
    throw std::bad_alloc();
  }
  return offset;
}

std::unique_ptr<Reservation> RankExchange::reserve(size_t bytes) {
  if (!is_shared()) return std::make_unique<Reservation>(bytes);
  return std::make_unique<Reservation>(bytes, ranks_.shared_fd, extend(bytes));
}

void RankExchange::begin_step() {
  ++step_;
  if (is_shared()) wait(-1);
}

void RankExchange::complete(int32_t number, uint8_t* data, int64_t rows, int64_t row_bytes) {
  if (is_shared()) {
    wait(number);
  } else {
    pass(number, data, rows, row_bytes);
  }
}

void RankExchange::pass(int32_t number, uint8_t* data, int64_t rows, int64_t row_bytes) const {
  if (ranks_.exchange == nullptr) fail("nothing connects them");
  if (ranks_.exchange(number, data, rows, row_bytes) != 0) fail("an exchange failed");
}

void RankExchange::wait(int32_t number) {
  if (!is_shared()) return;
  RankControl& control = *control_;
  const uint64_t tag = step_ << 32 | static_cast<uint32_t>(number + 1);
  const uint32_t count = ++count_;
  RankControl::Slot& own = control.slots[ranks_.rank];
  own.tags[count & 1].store(tag, std::memory_order_relaxed);
  own.count.store(count, std::memory_order_seq_cst);
  control.arrivals.fetch_add(1, std::memory_order_seq_cst);
  if (control.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake(control.arrivals);
  const int64_t begin = now_ns(), spin_until = begin + kSpinNs;
  for (int32_t r = 0; r < ranks_.num_ranks; ++r) {
    RankControl::Slot& other = control.slots[r];
    while (true) {
      const uint32_t arrivals = control.arrivals.load(std::memory_order_seq_cst);
      if (static_cast<int32_t>(other.count.load(std::memory_order_seq_cst) - count) >= 0) break;
      if (const uint32_t failed = control.failed.load(std::memory_order_relaxed)) {
        fail("rank " + std::to_string(failed - 1) + " has failed");
      }
      if (now_ns() < spin_until) continue;
      control.sleepers.fetch_add(1, std::memory_order_seq_cst);
      if (static_cast<int32_t>(other.count.load(std::memory_order_seq_cst) - count) < 0) {
        futex_sleep(control.arrivals, arrivals);
      }
      control.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
    const uint64_t theirs = other.tags[count & 1].load(std::memory_order_relaxed);
    if (theirs != tag) {
      control.failed.store(r + 1);
      fail("rank " + std::to_string(r) + " is at " + text_of(theirs) + ", and rank " +
           std::to_string(ranks_.rank) + " at " + text_of(tag));
    }
  }
  own.waited_ns.fetch_add(now_ns() - begin, std::memory_order_relaxed);
}

}  // namespace quire

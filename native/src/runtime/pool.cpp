// The gate is one word: how often it was opened, whether it is open, and how many helpers came in.
//
// A helper comes in by raising the count of an open gate; the caller closes it and so learns for
// how many it has to wait. Nobody can come in after that, so the region may then end.
//
// The owner is another word: the process in which the helpers were started, and whether a caller
// has them. What a fork left behind, helpers of the parent or a caller in the midst of a region,
// is recognised by the process.
#include "runtime/pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <stdexcept>

namespace quire {
namespace {

constexpr uint32_t kCount = 0xffff;
constexpr uint32_t kOpen = 0x10000;
constexpr uint32_t kOpening = 0x20000;  // added to the number of openings, which may wrap around

// Between regions: long enough to catch the next one of a step, and the next step of a busy engine;
// short enough to leave the core to the server's own threads.
constexpr int64_t kHelperSpinNs = 50'000;
// Others wait for us only while they finish a unit of work each: sleeping is for a machine with too
// few free cores.
constexpr int64_t kCallerSpinNs = 300'000;

constexpr uint64_t kTaken = 1;
constexpr uint64_t kProcess = 2;  // added for every fork on the way to this process

std::atomic<uint64_t> this_process{kProcess};
[[maybe_unused]] const int counts_forks = pthread_atfork(
    nullptr, nullptr, [] { this_process.fetch_add(kProcess, std::memory_order_relaxed); });

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

// Returns the first value of `word` that `wanted` accepts. The flag is raised before the last look
// at the word, and the waker looks at the flag after changing the word: no wake-up is lost.
template <class Wanted>
uint32_t wait_for(std::atomic<uint32_t>& word, std::atomic<bool>& sleeps, int64_t spin_ns,
                  Wanted wanted) {
  uint32_t value = word.load(std::memory_order_acquire);
  for (int i = 0; i < 256; ++i, value = word.load(std::memory_order_acquire)) {
    if (wanted(value)) return value;
    relax();
  }
  const int64_t deadline = now_ns() + spin_ns;
  while (now_ns() < deadline) {
    for (int i = 0; i < 16; ++i, value = word.load(std::memory_order_acquire)) {
      if (wanted(value)) return value;
      relax();
    }
  }
  while (true) {
    sleeps.store(true, std::memory_order_seq_cst);
    value = word.load(std::memory_order_seq_cst);
    if (wanted(value)) return value;
    futex_wait(word, value);
  }
}

void wake(std::atomic<uint32_t>& word, std::atomic<bool>& sleeps) {
  if (!sleeps.load(std::memory_order_seq_cst)) return;
  sleeps.store(false, std::memory_order_seq_cst);
  futex_wake_all(word);
}

void pin_to_allowed_cpu(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int count = CPU_COUNT(&allowed);
  int wanted = count > 0 ? index % count : 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || wanted-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

}  // namespace

Pool::Pool(int num_threads, bool pin)
    : num_threads_(num_threads), pin_(pin), shares_(std::max(num_threads, 1)) {
  if (num_threads < 1 || num_threads > 1024) {
    throw std::invalid_argument("a pool has 1 to 1024 threads");
  }
}

Pool::~Pool() {
  if (owner_.load() != this_process.load()) return;
  stopping_ = true;
  gate_.fetch_add(kOpening, std::memory_order_seq_cst);
  wake(gate_, helpers_sleep_);
  for (pthread_t thread : threads_) pthread_join(thread, nullptr);
}

// False if another caller has the helpers.
bool Pool::take() {
  const uint64_t here = this_process.load(std::memory_order_relaxed);
  uint64_t owner = owner_.load(std::memory_order_relaxed);
  if (owner == here + kTaken) return false;
  if (!owner_.compare_exchange_strong(owner, here + kTaken, std::memory_order_acquire))
    return false;
  if (owner != here) start_helpers();
  return true;
}

void Pool::start_helpers() {
  threads_.clear();  // after a fork these were the parent's, as was the region
  gate_.store(0);
  helpers_sleep_.store(false);
  caller_sleeps_.store(false);
  for (int index = 1; index < num_threads_; ++index) {
    auto* start = new Start{this, index};
    pthread_t thread;
    if (pthread_create(&thread, nullptr, thread_main, start) != 0) {
      delete start;
      owner_.fetch_sub(kTaken, std::memory_order_release);
      throw std::runtime_error("cannot start a compute thread");
    }
    threads_.push_back(thread);
  }
}

void* Pool::thread_main(void* argument) {
  const Start start = *static_cast<Start*>(argument);
  delete static_cast<Start*>(argument);
  pthread_setname_np(pthread_self(), "quire-compute");
  if (start.pool->pin_) pin_to_allowed_cpu(start.index);
  start.pool->serve(start.index);
  return nullptr;
}

void Pool::serve(int index) {
  for (uint32_t seen = 0; join(seen);) {
    Worker worker(shares_.data(), num_threads_, index);
    region_.entry(region_.context, worker);
    left_.fetch_add(1, std::memory_order_seq_cst);
    wake(left_, caller_sleeps_);
  }
}

// Comes into the next region that was not `seen` yet; false when the pool is going away.
bool Pool::join(uint32_t& seen) {
  while (true) {
    uint32_t gate = wait_for(gate_, helpers_sleep_, kHelperSpinNs, [&](uint32_t value) {
      return ((value & kOpen) != 0 && value / kOpening != seen) || stopping_;
    });
    if (stopping_) return false;
    if (gate_.compare_exchange_strong(gate, gate + 1, std::memory_order_acq_rel)) {
      seen = gate / kOpening;
      return true;
    }
  }
}

void Pool::enter(int64_t units, Entry entry, void* context) {
  if (take()) {
    for (Share& share : shares_) share.taken.store(0, std::memory_order_relaxed);
    region_ = {entry, context};
    Worker caller(shares_.data(), num_threads_, 0);
    if (num_threads_ > 1 && units > 1) {
      share(caller);
    } else {
      entry(context, caller);
    }
    owner_.fetch_sub(kTaken, std::memory_order_release);
  } else {
    Share all;
    Worker alone(&all, 1, 0);
    entry(context, alone);
  }
  regions_.fetch_add(1, std::memory_order_relaxed);
}

// The caller's work on the region while the gate is open, and the wait for those who came.
void Pool::share(Worker& caller) {
  left_.store(0, std::memory_order_relaxed);
  const uint32_t opening = (gate_.load(std::memory_order_relaxed) / kOpening + 1) * kOpening;
  gate_.store(opening + kOpen, std::memory_order_seq_cst);
  wake(gate_, helpers_sleep_);
  region_.entry(region_.context, caller);
  const uint32_t entered = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & kCount;
  wait_for(left_, caller_sleeps_, kCallerSpinNs, [&](uint32_t left) { return left == entered; });
}

}  // namespace quire

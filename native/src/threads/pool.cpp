// The gate is one word: how often it was opened, whether it is open, and how many helpers came in.
//
// A helper comes in by raising the count of an open gate; the caller closes it and so learns for
// how many it has to wait. No helper can come in after that, so the region may then end.
//
// The owner is another word: the process in which the helpers were started, and whether a caller
// has them. State copied by a fork, helpers of the parent or a caller inside a region, is
// recognised by the process.
#include "threads/pool.h"

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
// Others wait for us only while they finish a unit of work each. After so long their threads are
// looked at.
constexpr int64_t kPatienceNs = 60'000;
// A thread whose processor time stands still for so long has no core.
constexpr int64_t kLookNs = 20'000;
// How long the caller goes on waiting awake for threads that do have cores: longer than a unit of
// work. Waking up takes time too.
constexpr int64_t kCallerSpinNs = 300'000;
// How long it sleeps after that before it looks again.
constexpr int64_t kNapNs = 500'000;

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

// At most `limit_ns`; 0: without limit.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t limit_ns = 0) {
  const timespec limit{static_cast<time_t>(limit_ns / 1'000'000'000), limit_ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected,
          limit_ns > 0 ? &limit : nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

// Looks at `word` for so long, or until `wanted` accepts its value, which is returned.
template <class Wanted>
uint32_t spin_for(std::atomic<uint32_t>& word, int64_t spin_ns, Wanted wanted) {
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
  return value;
}

// Sleeps once, unless `wanted` accepts the word's value; returns the value after that. Who sleeps
// is counted before the last look at the word, and the waker looks at the count after changing the
// word: no wake-up is lost. Only sleepers change the count: a waker that was delayed could
// otherwise undo what a thread says that goes to sleep meanwhile.
template <class Wanted>
uint32_t sleep_for(std::atomic<uint32_t>& word, std::atomic<int>& sleepers, int64_t limit_ns,
                   Wanted wanted) {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  uint32_t value = word.load(std::memory_order_seq_cst);
  if (!wanted(value)) {
    futex_wait(word, value, limit_ns);
    value = word.load(std::memory_order_acquire);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return value;
}

// True if the thread gets no processor time while the caller looks.
bool has_no_core(const ComputeThread& thread) {
  const int64_t before = thread.cpu_time_ns();
  for (const int64_t end = now_ns() + kLookNs; now_ns() < end;) relax();
  return before >= 0 && thread.cpu_time_ns() == before;
}

void wake(std::atomic<uint32_t>& word, const std::atomic<int>& sleepers) {
  if (sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(word);
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
    : num_threads_(num_threads),
      pin_(pin),
      shares_(std::max(num_threads, 1)),
      helpers_(std::max(num_threads, 1) - 1) {
  if (num_threads < 1 || num_threads > 1024) {
    throw std::invalid_argument("a pool has 1 to 1024 threads");
  }
}

Pool::~Pool() {
  if (owner_.load() != this_process.load()) return;
  stopping_ = true;
  gate_.fetch_add(kOpening, std::memory_order_seq_cst);
  wake(gate_, sleeping_helpers_);
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
  sleeping_helpers_.store(0);
  sleeping_callers_.store(0);
  caller_is_inside_.store(false);
  caller_.reset();
  for (Helper& helper : helpers_) {
    helper.thread.reset();
    helper.is_inside.store(false);
  }
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
  Helper& self = helpers_[index - 1];
  self.thread.set_self();
  int64_t spin_ns = kHelperSpinNs;
  for (uint32_t seen = 0; join(index, seen, spin_ns);) {
    self.thread.settle();
    Worker worker(shares_.data(), num_threads_, index);
    region_.entry(region_.context, worker);
    self.is_inside.store(false, std::memory_order_relaxed);
    left_.fetch_add(1, std::memory_order_seq_cst);
    wake(left_, sleeping_callers_);
    // Then the core is the caller's, who has slept meanwhile.
    spin_ns = self.thread.is_lent() ? 0 : kHelperSpinNs;
  }
}

// Comes into the next region that was not `seen` yet; false when the pool is going away.
bool Pool::join(int index, uint32_t& seen, int64_t spin_ns) {
  const auto is_next = [&](uint32_t value) {
    return ((value & kOpen) != 0 && value / kOpening != seen) || stopping_;
  };
  while (true) {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    if (spin_ns > 0) gate = spin_for(gate_, spin_ns, is_next);
    if (spin_ns > 0 && !is_next(gate)) lend_to_caller(index);
    while (!is_next(gate)) gate = sleep_for(gate_, sleeping_helpers_, 0, is_next);
    if (stopping_) return false;
    if (gate_.compare_exchange_strong(gate, gate + 1, std::memory_order_acq_rel)) {
      helpers_[index - 1].is_inside.store(true, std::memory_order_relaxed);
      seen = gate / kOpening;
      return true;
    }
  }
}

// For a helper that finds nothing to do while the caller is still inside a region.
void Pool::lend_to_caller(int index) {
  if (!caller_is_inside_.load() || !has_no_core(caller_)) return;
  caller_.lend([&] {
    lender_ = index;
    return caller_is_inside_.load();
  });
}

// The lender sleeps, or is about to, and wakes up on another core.
void Pool::end_loan_to_caller() {
  caller_is_inside_.store(false);
  if (!caller_.is_lent()) return;
  helpers_[lender_ - 1].thread.send_away();
  caller_.settle();
}

// True if the core of the caller, who must sleep next, went to a helper that had none.
ComputeThread* Pool::lend_to_helper() {
  for (Helper& helper : helpers_) {
    const auto is_inside = [&] { return helper.is_inside.load(std::memory_order_relaxed); };
    if (is_inside() && has_no_core(helper.thread) && helper.thread.lend(is_inside)) {
      return &helper.thread;
    }
  }
  return nullptr;
}

void Pool::wait_for_helpers(uint32_t entered) {
  const auto all_left = [&](uint32_t left) { return left == entered; };
  bool is_first = true;
  for (uint32_t left = spin_for(left_, kPatienceNs, all_left); !all_left(left); is_first = false) {
    ComputeThread* borrower = lend_to_helper();
    if (!borrower && is_first) {
      left = spin_for(left_, kCallerSpinNs, all_left);
      continue;
    }
    left = sleep_for(left_, sleeping_callers_, borrower ? 0 : kNapNs, all_left);
    if (borrower) borrower->send_away();
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
  caller_.set_self();
  caller_is_inside_.store(true, std::memory_order_relaxed);
  const uint32_t opening = (gate_.load(std::memory_order_relaxed) / kOpening + 1) * kOpening;
  gate_.store(opening + kOpen, std::memory_order_seq_cst);
  wake(gate_, sleeping_helpers_);
  region_.entry(region_.context, caller);
  const uint32_t entered = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & kCount;
  wait_for_helpers(entered);
  end_loan_to_caller();
}

}  // namespace quire

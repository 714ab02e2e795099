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

// Between steps: long enough to catch the next step of a busy engine, short enough to leave the
// core to the server's own threads.
constexpr int64_t kIdleSpinNs = 50'000;
// Inside a step others wait for us: sleeping is only for a machine with too few free cores.
constexpr int64_t kBarrierSpinNs = 300'000;

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

// Returns once `word` differs from `old`. The sleeper count is raised before the last look at the
// word, and the waker looks at the count after changing the word: no wake-up is lost.
void wait_for_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<int32_t>& sleepers,
                     int64_t spin_ns) {
  for (int i = 0; i < 256; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    relax();
  }
  const int64_t deadline = now_ns() + spin_ns;
  while (now_ns() < deadline) {
    for (int i = 0; i < 16; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      relax();
    }
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == old) futex_wait(word, old);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void advance(std::atomic<uint32_t>& word, std::atomic<int32_t>& sleepers) {
  word.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(word);
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

int Worker::count() const { return pool_.size(); }
void Worker::barrier() { pool_.barrier(); }
int64_t Worker::grab() { return pool_.tickets_.fetch_add(1, std::memory_order_relaxed); }

Pool::Pool(int num_threads, bool pin) : num_threads_(num_threads), pin_(pin) {
  if (num_threads < 1 || num_threads > 1024) {
    throw std::invalid_argument("a pool has 1 to 1024 threads");
  }
}

Pool::~Pool() {
  if (threads_.empty() || owner_ != getpid()) return;
  stopping_ = true;
  advance(region_, region_sleepers_);
  for (pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void Pool::start_threads() {
  owner_ = getpid();
  threads_.clear();  // after a fork these were the parent's
  region_sleepers_.store(0);
  phase_sleepers_.store(0);
  arrived_.store(0);
  for (int index = 1; index < num_threads_; ++index) {
    auto* start = new Start{this, index, region_.load()};
    pthread_t thread;
    if (pthread_create(&thread, nullptr, thread_main, start) != 0) {
      delete start;
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
  start.pool->serve(start.index, start.epoch);
  return nullptr;
}

void Pool::serve(int index, uint32_t epoch) {
  Worker worker(*this, index);
  while (true) {
    wait_for_change(region_, epoch, region_sleepers_, kIdleSpinNs);
    ++epoch;
    if (stopping_) return;
    entry_(context_, worker);
    barrier();
  }
}

void Pool::enter(Entry entry, void* context) {
  std::lock_guard<std::mutex> turn(caller_);
  if (num_threads_ > 1 && owner_ != getpid()) start_threads();
  entry_ = entry;
  context_ = context;
  tickets_.store(0, std::memory_order_relaxed);
  if (num_threads_ > 1) advance(region_, region_sleepers_);
  Worker caller(*this, 0);
  entry(context, caller);
  barrier();
}

void Pool::barrier() {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (num_threads_ == 1) {
    tickets_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_relaxed);
    return;
  }
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    tickets_.store(0, std::memory_order_relaxed);
    advance(phase_, phase_sleepers_);
  } else {
    wait_for_change(phase_, phase, phase_sleepers_, kBarrierSpinNs);
  }
}

}  // namespace quire

#include "threads/core_loan.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace quire {
namespace {

// The kernel's name for the processor time of one thread: clock_getcpuclockid(3) has it for
// processes, pthread_getcpuclockid(3) for a pthread_t only.
clockid_t cpu_clock(pid_t tid) { return (~static_cast<clockid_t>(tid) << 3) | 6; }

thread_local pid_t own_tid = 0;
[[maybe_unused]] const int forgets_on_fork = pthread_atfork(nullptr, nullptr, [] { own_tid = 0; });

}  // namespace

void ComputeThread::set_self() {
  if (own_tid == 0) own_tid = static_cast<pid_t>(syscall(SYS_gettid));
  tid_.store(own_tid, std::memory_order_relaxed);
}

int64_t ComputeThread::cpu_time_ns() const {
  timespec t;
  if (clock_gettime(cpu_clock(tid_.load(std::memory_order_relaxed)), &t) != 0) return -1;
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

bool ComputeThread::move_here() {
  const pid_t tid = tid_.load(std::memory_order_relaxed);
  const int core = sched_getcpu();
  if (core < 0 || core >= CPU_SETSIZE) return false;
  if (sched_getaffinity(tid, sizeof allowed_, &allowed_) != 0) return false;
  if (CPU_COUNT(&allowed_) < 2 || !CPU_ISSET(core, &allowed_)) return false;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  return sched_setaffinity(tid, sizeof only, &only) == 0;
}

bool ComputeThread::is_lent() const {
  int state = state_.load();
  while (state == kLending) state = state_.load();
  return state == kLent;
}

void ComputeThread::send_away() {
  const pid_t tid = tid_.load(std::memory_order_relaxed);
  if (state_.load() == kFree && sched_getaffinity(tid, sizeof allowed_, &allowed_) != 0) return;
  cpu_set_t others = allowed_;
  const int core = sched_getcpu();
  if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) others = allowed_;
  sched_setaffinity(tid, sizeof others, &others);
  state_.store(kAway);
}

void ComputeThread::settle() {
  const int state = state_.load(std::memory_order_relaxed);
  if (state != kLent && state != kAway) return;
  sched_setaffinity(0, sizeof allowed_, &allowed_);
  state_.store(kFree);
}

}  // namespace quire

// A fixed table of mappings, read by a signal handler that uses nothing but atomics and system
// calls.
#include "machine/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace quire {
namespace {

constexpr int32_t kSlots = 4096;

// A slot is free while `bytes` is 0. Its other fields are written before `bytes` is.
struct Slot {
  std::atomic<size_t> bytes{0};
  std::atomic<uintptr_t> begin{0};
  std::atomic<char*> name{nullptr};
  std::atomic<int64_t> fault{-1};
};

Slot slots[kSlots];
std::atomic<int32_t> slots_used{0};  // all slots from here on were never taken
std::mutex changing;
struct sigaction former;
uintptr_t page_bytes;

void say(const char* text) {
  // The process is about to end: nothing is left to do about a failed write.
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

[[noreturn]] void give_up(const Slot& slot) {
  say("quire: ");
  say(slot.name.load());
  say(": a part of the file cannot be read; it was cut short, or its disk fails\n");
  _exit(1);
}

void put_zeros(Slot& slot, uintptr_t address) {
  const uintptr_t begin = slot.begin.load(), end = begin + slot.bytes.load();
  const uintptr_t page = address / page_bytes * page_bytes;
  const uintptr_t last = (end + page_bytes - 1) / page_bytes * page_bytes;
  void* placed = mmap(reinterpret_cast<void*>(page), last - page, PROT_READ,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (placed == MAP_FAILED) give_up(slot);
  const auto offset = static_cast<int64_t>(page - begin);
  int64_t known = slot.fault.load();
  while ((known < 0 || offset < known) && !slot.fault.compare_exchange_weak(known, offset)) {
  }
}

Slot* slot_at(uintptr_t address) {
  const int32_t used = slots_used.load();
  for (int32_t i = 0; i < used; ++i) {
    const size_t bytes = slots[i].bytes.load();
    const uintptr_t begin = slots[i].begin.load();
    if (address >= begin && address - begin < bytes) return &slots[i];
  }
  return nullptr;
}

void pass_on(int number, siginfo_t* info, void* context) {
  if (former.sa_flags & SA_SIGINFO) {
    former.sa_sigaction(number, info, context);
  } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
    former.sa_handler(number);
  } else if (former.sa_handler == SIG_DFL || info->si_code > 0) {
    signal(number, SIG_DFL);
    if (info->si_code <= 0) raise(number);  // sent by a process; a fault repeats by itself
  }
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  Slot* slot = info->si_code > 0 ? slot_at(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  if (slot != nullptr) {
    put_zeros(*slot, reinterpret_cast<uintptr_t>(info->si_addr));
  } else {
    pass_on(number, info, context);
  }
  errno = saved_errno;
}

void install() {
  static bool is_installed = false;
  if (is_installed) return;
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  if (sigaction(SIGBUS, nullptr, &former) != 0) throw std::runtime_error("no SIGBUS handler");
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, nullptr) != 0) throw std::runtime_error("no SIGBUS handler");
  is_installed = true;
}

}  // namespace

int32_t watch_mapping(const void* data, int64_t bytes, const char* name) {
  if (data == nullptr || bytes < 1) throw std::invalid_argument("mapping: empty");
  const std::lock_guard<std::mutex> lock(changing);
  install();
  for (int32_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots[i];
    if (slot.bytes.load() != 0) continue;
    char* copy = strdup(name);
    if (copy == nullptr) throw std::bad_alloc();
    slot.name.store(copy);
    slot.begin.store(reinterpret_cast<uintptr_t>(data));
    slot.fault.store(-1);
    slot.bytes.store(static_cast<size_t>(bytes));
    if (i >= slots_used.load()) slots_used.store(i + 1);
    return i;
  }
  return -1;
}

void forget_mapping(int32_t slot) {
  if (slot < 0 || slot >= kSlots) return;
  const std::lock_guard<std::mutex> lock(changing);
  slots[slot].bytes.store(0);
  std::free(slots[slot].name.exchange(nullptr));
}

int64_t mapping_fault(int32_t slot) {
  return slot >= 0 && slot < kSlots ? slots[slot].fault.load() : -1;
}

}  // namespace quire

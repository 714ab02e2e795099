// The C ABI of `libquire_machine`, which runs on every processor: it reports what the processor can
// run, so that a library of the right tier is loaded, and guards mapped files.
#include <exception>
#include <string>

#include "machine/cpu_tiers.h"
#include "machine/mapping_guard.h"
#include "quire.h"

namespace {
thread_local std::string last_error;
}

#define QUIRE_API extern "C" __attribute__((visibility("default")))

QUIRE_API int32_t quire_abi_version(void) { return QUIRE_ABI_VERSION; }
QUIRE_API const char* quire_last_error(void) { return last_error.c_str(); }

QUIRE_API int32_t quire_cpu_tiers(void) { return quire::cpu_tiers(); }
QUIRE_API int32_t quire_cpu_is_intel(void) { return quire::cpu_is_intel(); }
QUIRE_API int32_t quire_best_tier(int32_t tiers, int32_t is_intel) {
  return quire::best_tier(tiers, is_intel != 0);
}

QUIRE_API int32_t quire_watch_mapping(const void* data, int64_t bytes, const char* name) {
  try {
    return quire::watch_mapping(data, bytes, name);
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

QUIRE_API void quire_forget_mapping(int32_t slot) { quire::forget_mapping(slot); }
QUIRE_API int64_t quire_mapping_fault(int32_t slot) { return quire::mapping_fault(slot); }

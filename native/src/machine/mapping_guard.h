// Handles pages of mapped files that cannot be read, without ending the process.
//
// The kernel sends SIGBUS for a page beyond the end of a file that was cut short, and for one that
// the disk does not give. In a watched mapping, a handler puts zero pages in place of everything
// from there to the mapping's end, and remembers where that began: the thread goes on, and whoever
// called it asks `mapping_fault` and throws away what was computed. Any other SIGBUS goes to the
// handler that was there before.
#pragma once

#include <cstdint>

namespace quire {

// Returns the mapping's slot, or -1 when all are taken. `name` is for the message of a process
// that has to end. The first call installs the handler, once per process.
int32_t watch_mapping(const void* data, int64_t bytes, const char* name);

// To be called before the mapping goes.
void forget_mapping(int32_t slot);

// The first byte of the mapping that could not be read, or -1. Any thread.
int64_t mapping_fault(int32_t slot);

}  // namespace quire

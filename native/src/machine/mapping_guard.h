// Handles pages of mapped files that cannot be read, without ending the process.
//
// The kernel sends SIGBUS for a page after the end of a truncated file, and for a page that the
// disk cannot read. In a watched mapping, a handler replaces the pages from there to the mapping's
// end by zeros, and records the offset of the first one. The thread continues, and its caller must
// check `mapping_fault` and discard the results. Any other SIGBUS goes to the previous handler.
#pragma once

#include <cstdint>

namespace quire {

// Returns the mapping's slot, or -1 if all slots are in use. `name` is for the message if the
// process must end. The first call installs the handler, once per process.
int32_t watch_mapping(const void* data, int64_t bytes, const char* name);

// Call it before the mapping is removed.
void forget_mapping(int32_t slot);

// The first byte of the mapping that could not be read, or -1. Any thread may call it.
int64_t mapping_fault(int32_t slot);

}  // namespace quire

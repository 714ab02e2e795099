// Which instruction-set tiers this processor and kernel can run. Nothing here uses an instruction
// beyond the generic tier's.
#pragma once

#include <cstdint>

namespace quire {

// Bit (1 << quire_tier) for each tier that can run.
int32_t cpu_tiers();

bool cpu_is_intel();

// The tier these sources were compiled for.
int32_t library_tier();

}  // namespace quire

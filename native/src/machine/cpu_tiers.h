// Which instruction-set tiers this processor and kernel can run, and which of them is the fastest.
// Nothing here uses an instruction beyond the generic tier's.
#pragma once

#include <cstdint>

namespace quire {

// Bit (1 << quire_tier) for each tier that can run.
int32_t cpu_tiers();

bool cpu_is_intel();

// The fastest tier of a non-empty set of bits. The processor alone decides: a measurement could
// choose otherwise at the next start, and tiers may differ in the last bit.
//
// The fastest tier is the highest one, with one exception: Intel's cores do half as many bfloat16
// dot products per cycle as AMD's. Without AMX, float32 products of widened weights are as fast
// for one row, 1.3 times as fast for 32 and 1.5 times for 512 (measured on a Xeon without its AMX).
int32_t best_tier(int32_t tiers, bool is_intel);

}  // namespace quire

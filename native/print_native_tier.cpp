// Prints the name of the fastest tier of the machine that compiles Quire, for QUIRE_TIERS=native,
// and then those of all tiers that it can run, for QUIRE_TIERS=runnable. The build runs it once.
#include <cstdio>

#include "src/machine/cpu_tiers.cpp"

int main() {
  const char* names[] = {"generic",     "avx2", "avx_vnni",     "avx512",
                         "avx512_bf16", "amx",  "neon_dotprod", "neon_i8mm"};
  const int32_t tiers = quire::cpu_tiers();
  std::printf("%s", names[quire::best_tier(tiers, quire::cpu_is_intel())]);
  for (int tier = QUIRE_TIER_GENERIC; tier <= QUIRE_TIER_NEON_I8MM; ++tier) {
    if ((tiers >> tier & 1) != 0) std::printf(";%s", names[tier]);
  }
  return 0;
}

#include "machine/cpu_tiers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "quire.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace quire {

#if defined(__x86_64__)
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

constexpr bool bit(uint32_t value, int index) { return (value >> index & 1) != 0; }

// Which register states the kernel saves (XCR0). Source: Intel SDM volume 1, section 13.3.
uint64_t saved_states() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

constexpr uint64_t kYmmStates = 0x6;
constexpr uint64_t kZmmStates = 0xe6;
constexpr uint64_t kTileStates = 0x60000;
constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;

bool permit_tiles() { return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0; }

}  // namespace

int32_t cpu_tiers() {
  const Registers basic = cpuid(1, 0);
  const Registers extended = cpuid(7, 0);
  const Registers more = cpuid(7, 1);
  const uint64_t states = saved_states();
  int32_t tiers = 1 << QUIRE_TIER_GENERIC;
  const bool avx2 = bit(basic.ecx, 12) && bit(basic.ecx, 29) && bit(extended.ebx, 5) &&
                    bit(extended.ebx, 8) && (states & kYmmStates) == kYmmStates;
  if (!avx2) return tiers;
  tiers |= 1 << QUIRE_TIER_AVX2;
  if (bit(more.eax, 4)) tiers |= 1 << QUIRE_TIER_AVX_VNNI;
  // F, DQ, CD, BW, VL, VNNI.
  const bool avx512 = bit(extended.ebx, 16) && bit(extended.ebx, 17) && bit(extended.ebx, 28) &&
                      bit(extended.ebx, 30) && bit(extended.ebx, 31) && bit(extended.ecx, 11) &&
                      (states & kZmmStates) == kZmmStates;
  if (!avx512) return tiers;
  tiers |= 1 << QUIRE_TIER_AVX512;
  if (!bit(more.eax, 5)) return tiers;
  tiers |= 1 << QUIRE_TIER_AVX512_BF16;
  // AMX-BF16, AMX-TILE, AMX-INT8.
  const bool amx = bit(extended.edx, 22) && bit(extended.edx, 24) && bit(extended.edx, 25) &&
                   (states & kTileStates) == kTileStates && permit_tiles();
  if (amx) tiers |= 1 << QUIRE_TIER_AMX;
  return tiers;
}

bool cpu_is_intel() {
  const Registers vendor = cpuid(0, 0);  // "GenuineIntel", in this order of registers
  return vendor.ebx == 0x756e6547 && vendor.edx == 0x49656e69 && vendor.ecx == 0x6c65746e;
}

#else

#if defined(__aarch64__)
namespace {
// Source: Linux, arch/arm64/include/uapi/asm/hwcap.h. ATOMICS, ASIMDRDM, ASIMDDP: the first two are
// part of what the compiler may use of ARMv8.2.
constexpr uint64_t kDotHwcaps = 1 << 8 | 1 << 12 | 1 << 20;
constexpr uint64_t kI8mmHwcaps2 = 1 << 13 | 1 << 14;  // I8MM, BF16
}  // namespace

int32_t cpu_tiers() {
  int32_t tiers = 1 << QUIRE_TIER_GENERIC;
  if ((getauxval(AT_HWCAP) & kDotHwcaps) != kDotHwcaps) return tiers;
  tiers |= 1 << QUIRE_TIER_NEON_DOTPROD;
  if ((getauxval(AT_HWCAP2) & kI8mmHwcaps2) == kI8mmHwcaps2) tiers |= 1 << QUIRE_TIER_NEON_I8MM;
  return tiers;
}
#else
int32_t cpu_tiers() { return 1 << QUIRE_TIER_GENERIC; }
#endif

bool cpu_is_intel() { return false; }

#endif

int32_t best_tier(int32_t tiers, bool is_intel) {
  int32_t best = QUIRE_TIER_GENERIC;
  while (tiers >> (best + 1) != 0) ++best;
  const bool has_avx512 = (tiers >> QUIRE_TIER_AVX512 & 1) != 0;
  if (is_intel && best == QUIRE_TIER_AVX512_BF16 && has_avx512) return QUIRE_TIER_AVX512;
  return best;
}

}  // namespace quire

// The tier that the sources are compiled for.
#pragma once

#include "quire.h"

namespace quire {

#if defined(__AMX_BF16__)
constexpr int32_t kLibraryTier = QUIRE_TIER_AMX;
#elif defined(__AVX512BF16__)
constexpr int32_t kLibraryTier = QUIRE_TIER_AVX512_BF16;
#elif defined(__AVX512F__)
constexpr int32_t kLibraryTier = QUIRE_TIER_AVX512;
#elif defined(__AVXVNNI__)
constexpr int32_t kLibraryTier = QUIRE_TIER_AVX_VNNI;
#elif defined(__AVX2__)
constexpr int32_t kLibraryTier = QUIRE_TIER_AVX2;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int32_t kLibraryTier = QUIRE_TIER_NEON_I8MM;
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int32_t kLibraryTier = QUIRE_TIER_NEON_DOTPROD;
#else
constexpr int32_t kLibraryTier = QUIRE_TIER_GENERIC;
#endif

}  // namespace quire

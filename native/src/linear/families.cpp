#include "linear/families.h"

#include "linear/grouped/float_family.h"
#include "linear/int4_pairs.h"
#include "linear/vector_family.h"
#if defined(__AMX_BF16__)
#include "linear/amx/amx_family.h"
#endif

namespace quire::gemm {
namespace {

using F32Family = VectorFamily<F32Product>;

#if defined(__AMX_BF16__)
using Bf16Family = AmxFamily<AmxBf16>;
using Int8A8Family = AmxFamily<AmxInt8<1>>;
using Int8A16Family = AmxFamily<AmxInt8<2>>;
using Int4A8Family = AmxFamily<AmxInt4<1>>;
using Int4A16Family = AmxFamily<AmxInt4<2>>;
#else
#if defined(QUIRE_DOTS_OF_BF16)
using Bf16Family = VectorFamily<Bf16Dot>;
#else
using Bf16Family = VectorFamily<Bf16Widened>;
#endif
using Int8A8Family = VectorFamily<Int8Product<1>>;
#if defined(QUIRE_PAIRS_OF_WORDS)
using Int8A16Family = VectorFamily<WordProduct>;
#else
using Int8A16Family = VectorFamily<Int8Product<2>>;
#endif
#if defined(QUIRE_PAIRS_OF_BYTES)
using Int4A8Family = Int4PairFamily<1>;
using Int4A16Family = VectorFamily<WordProduct, Int4Weights>;
#else
using Int4A8Family = VectorFamily<Int8Product<1>, Int4Weights>;
using Int4A16Family = VectorFamily<Int8Product<2>, Int4Weights>;
#endif
#endif

// Fewer rows read 4-bit weights as they lie, and the sums are the same integers.
#if defined(QUIRE_PAIRS_OF_BYTES)
using Int4A16FewRows = Int4PairFamily<2>;
#else
using Int4A16FewRows = Int4A16Family;
#endif

#if defined(__AVX512BF16__)
using E4m3Bf16Family = FloatFamily<Bf16Dot, E4m3Halves>;
#else
using E4m3Bf16Family = FloatFamily<RoundedF32, E4m3Floats>;
#endif

#if defined(__AMX_BF16__)
constexpr ChangePlace kPlaceOfBf16 = ChangePlace::kTilesOfSums;
constexpr ChangePlace kPlaceOfBytes = ChangePlace::kTiles;
#else
constexpr ChangePlace kPlaceOfBf16 = ChangePlace::kVectors;
constexpr ChangePlace kPlaceOfBytes = ChangePlace::kVectors;
#endif

}  // namespace

const Family& family_of(Format format, int64_t rows) {
  switch (kind_of(format)) {
    case Format::kBF16:
      return kFamily<Bf16Family, kPlaceOfBf16>;
    case Format::kInt8A8:
      return kFamily<Int8A8Family, kPlaceOfBytes>;
    case Format::kInt8A16:
      return kFamily<Int8A16Family, kPlaceOfBytes>;
    case Format::kInt4A8:
      return kFamily<Int4A8Family, kPlaceOfBytes>;
    case Format::kInt4A16:
      if (rows <= kFewInt4Rows) return kFamily<Int4A16FewRows, kPlaceOfBytes>;
      return kFamily<Int4A16Family, kPlaceOfBytes>;
    case Format::kGroupedA8:
    case Format::kGroupedA16:
    case Format::kGroupedA8Blocks:
      return grouped_family_of(format);
    case Format::kGroupedBf16:
      return kFamily<E4m3Bf16Family>;
    case Format::kGroupedF32:
      if (Grouping(format).table == QUIRE_TABLE_E4M3) {
        return kFamily<FloatFamily<F32Product, E4m3Floats>>;
      }
      return kFamily<FloatFamily<F32Product, TableFloats>>;
    case Format::kHeldBF16:
      return kFamily<VectorFamily<HeldBf16>>;
    case Format::kHeldF16:
      return kFamily<VectorFamily<HeldF16>>;
    case Format::kF32:
      break;
  }
  return kFamily<F32Family>;
}

bool families_available() { return Bf16Family::available(); }

}  // namespace quire::gemm

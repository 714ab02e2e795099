// Which kernel family serves each format in this ISA tier.
//
// These sources are compiled once per tier, with that tier's compiler flags; nothing is chosen here
// at run time.
#pragma once

#include <type_traits>

#include "linear/grouped/float_family.h"
#include "linear/grouped/grouped_family.h"
#include "linear/int4_pairs.h"
#include "linear/vector_family.h"
#if defined(__AMX_BF16__)
#include "linear/amx/amx_family.h"
#include "linear/grouped/amx_grouped_family.h"
#endif

namespace quire::gemm {

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

template <class Family>
constexpr ChangePlace kChangePlace = ChangePlace::kVectors;
#if defined(__AMX_BF16__)
template <class Product>
constexpr ChangePlace kChangePlace<AmxFamily<Product>> =
    Product::kInt8 ? ChangePlace::kTiles : ChangePlace::kTilesOfSums;
#endif

template <class Family_>
struct FamilyTag {
  using Family = Family_;
};

// Calls `use` with the tag of a grouped format's family, which depends on the table's numbers.
template <int kPlanes, bool kBlocks, class Use>
auto with_grouped(Format format, Use use) {
  return with_codes(Grouping(format).table, [&](auto tag) {
    constexpr bool kSmall = decltype(tag)::Codes::kLargest <= kLargestSmall;
    using Bytes = std::conditional_t<kSmall, SmallGroupedProduct<kPlanes>, GroupedProduct<kPlanes>>;
#if defined(QUIRE_PAIRS_OF_WORDS)
    using Product = std::conditional_t<kPlanes == 2, WordGroupedProduct, Bytes>;
#else
    using Product = Bytes;
#endif
#if defined(__AMX_BF16__)
    if constexpr (!kBlocks) {
      if (Grouping(format).group > 16) return use(FamilyTag<AmxGroupedFamily<Product>>{});
    }
#endif
    return use(FamilyTag<GroupedFamily<Product, kBlocks>>{});
  });
}

#if defined(__AVX512BF16__)
using E4m3Bf16Family = FloatFamily<Bf16Dot, E4m3Halves>;
#else
using E4m3Bf16Family = FloatFamily<RoundedF32, E4m3Floats>;
#endif

// The same of one whose codes stand for floats and which multiplies float32.
template <class Use>
auto with_floats(Format format, Use use) {
  if (Grouping(format).table == QUIRE_TABLE_E4M3) {
    return use(FamilyTag<FloatFamily<F32Product, E4m3Floats>>{});
  }
  return use(FamilyTag<FloatFamily<F32Product, TableFloats>>{});
}

// Calls `use` with the tag of a format's family for products of so many rows.
template <class Use>
auto with_family(Format format, int64_t rows, Use use) {
  switch (kind_of(format)) {
    case Format::kBF16:
      return use(FamilyTag<Bf16Family>{});
    case Format::kInt8A8:
      return use(FamilyTag<Int8A8Family>{});
    case Format::kInt8A16:
      return use(FamilyTag<Int8A16Family>{});
    case Format::kInt4A8:
      return use(FamilyTag<Int4A8Family>{});
    case Format::kInt4A16:
      if (rows <= kFewInt4Rows) return use(FamilyTag<Int4A16FewRows>{});
      return use(FamilyTag<Int4A16Family>{});
    case Format::kGroupedA8:
      return with_grouped<1, false>(format, use);
    case Format::kGroupedA16:
      return with_grouped<2, false>(format, use);
    case Format::kGroupedA8Blocks:
      return with_grouped<1, true>(format, use);
    case Format::kGroupedBf16:
      return use(FamilyTag<E4m3Bf16Family>{});
    case Format::kGroupedF32:
      return with_floats(format, use);
    case Format::kHeldBF16:
      return use(FamilyTag<VectorFamily<HeldBf16>>{});
    case Format::kHeldF16:
      return use(FamilyTag<VectorFamily<HeldF16>>{});
    case Format::kF32:
      break;
  }
  return use(FamilyTag<F32Family>{});
}

}  // namespace quire::gemm

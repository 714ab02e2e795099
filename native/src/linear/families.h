// Which kernel family serves each format in this ISA tier.
//
// These sources are compiled once per tier, with that tier's compiler flags; nothing is chosen here
// at run time.
#pragma once

#include "linear/grouped/grouped_family.h"
#include "linear/vector_family.h"
#if defined(__AMX_BF16__)
#include "linear/amx/amx_family.h"
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
#if defined(__AVX512BF16__)
using Bf16Family = VectorFamily<Bf16Dot>;
#else
using Bf16Family = VectorFamily<Bf16Widened>;
#endif
using Int8A8Family = VectorFamily<Int8Product<1>>;
using Int8A16Family = VectorFamily<Int8Product<2>>;
using Int4A8Family = VectorFamily<Int8Product<1>, Int4Weights>;
using Int4A16Family = VectorFamily<Int8Product<2>, Int4Weights>;
#endif

using GroupedA8Family = GroupedFamily<1>;
using GroupedA16Family = GroupedFamily<2>;
using GroupedA8BlocksFamily = GroupedFamily<1, true>;

template <class Family_>
struct FamilyTag {
  using Family = Family_;
};

// Calls `use` with the tag of a format's family.
template <class Use>
auto with_family(Format format, Use use) {
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
      return use(FamilyTag<Int4A16Family>{});
    case Format::kGroupedA8:
      return use(FamilyTag<GroupedA8Family>{});
    case Format::kGroupedA16:
      return use(FamilyTag<GroupedA16Family>{});
    case Format::kGroupedA8Blocks:
      return use(FamilyTag<GroupedA8BlocksFamily>{});
    case Format::kF32:
      break;
  }
  return use(FamilyTag<F32Family>{});
}

}  // namespace quire::gemm

#include <type_traits>

#include "linear/families.h"
#include "linear/grouped/grouped_family.h"
#if defined(__AMX_BF16__)
#include "linear/grouped/amx_grouped_family.h"
#endif

namespace quire::gemm {
namespace {

// The family depends on the numbers of the format's table.
template <int kPlanes, bool kBlocks>
const Family& family_of_table(const Grouping& grouping) {
  return with_codes(grouping.table, [&](auto tag) -> const Family& {
    constexpr bool kSmall = decltype(tag)::Codes::kLargest <= kLargestSmall;
    using Bytes = std::conditional_t<kSmall, SmallGroupedProduct<kPlanes>, GroupedProduct<kPlanes>>;
#if defined(QUIRE_PAIRS_OF_WORDS)
    using Product = std::conditional_t<kPlanes == 2, WordGroupedProduct, Bytes>;
#else
    using Product = Bytes;
#endif
#if defined(__AMX_BF16__)
    if constexpr (!kBlocks) {
      if (grouping.group > 16) return kFamily<AmxGroupedFamily<Product>>;
    }
#endif
    return kFamily<GroupedFamily<Product, kBlocks>>;
  });
}

}  // namespace

const Family& grouped_family_of(Format format) {
  const Grouping grouping(format);
  switch (kind_of(format)) {
    case Format::kGroupedA8:
      return family_of_table<1, false>(grouping);
    case Format::kGroupedA16:
      return family_of_table<2, false>(grouping);
    default:
      return family_of_table<1, true>(grouping);
  }
}

}  // namespace quire::gemm

// Which kernel family serves each format in this ISA tier.
//
// These sources are compiled once per tier, with that tier's compiler flags; nothing is chosen here
// at run time.
#pragma once

#include "linear/vector_family.h"
#if defined(__AMX_BF16__)
#include "linear/amx_family.h"
#endif

namespace quire::gemm {

using F32Family = VectorFamily<F32Product>;

#if defined(__AMX_BF16__)
using Bf16Family = AmxFamily;
#elif defined(__AVX512BF16__)
using Bf16Family = VectorFamily<Bf16Dot>;
#else
using Bf16Family = VectorFamily<Bf16Widened>;
#endif

}  // namespace quire::gemm

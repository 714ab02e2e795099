// Which kernel family serves each format in this ISA tier.
//
// These sources are compiled once per tier, with that tier's compiler flags; nothing is chosen here
// at run time.
#pragma once

#include "linear/family.h"

namespace quire::gemm {

// The family of a format for products of so many rows.
const Family& family_of(Format format, int64_t rows);

// Of a format whose groups have codes that stand for whole numbers (grouped/grouped_families.cpp:
// half of all kernels, compiled at the same time as the others).
const Family& grouped_family_of(Format format);

// Whether the operating system lets the process use this tier's instructions.
bool families_available();

}  // namespace quire::gemm

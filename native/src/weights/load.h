// Packs checkpoint tensors into the order in which the kernels read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "quire.h"
#include "threads/pool.h"

namespace quire {

// Bytes of a matrix once packed. Throws on a bad size or format.
size_t matrix_bytes(const quire_matrix_spec& spec);

// What the packed bytes of a format depend on, as text. Throws on an unknown format.
std::string format_layout(int32_t format);

// Packs all of them in one parallel region. Throws, before anything is written, on bad sizes.
void pack(Pool& pool, const quire_packing* weights, int32_t num_weights);

}  // namespace quire

// How one line of packed weights meets one element of x, for each kind of product.
//
// A product says what a step of K is: kDepth elements of K in one line of weights, that meet
// kUnits broadcasts of 4 bytes for each row of x. `weight` makes of a register of the line what
// meets one of the units; `units_of` reads a segment of a row of x as units, a row of them for each
// plane. K is padded to kStepsTogether steps.
#pragma once

#include "linear/family.h"
#include "linear/float16.h"
#include "linear/x_segment.h"
#include "simd/dots.h"
#include "simd/simd.h"

namespace quire::gemm {

constexpr int kVectorLanes = kPartLanes;
using Vector = F32Part;
typedef uint32_t BitVector __attribute__((vector_size(kVectorLanes * 4)));

// Most products keep x as it is: one plane, nothing to know about a row beforehand.
struct PlainX {
  static constexpr int kPlanes = 1;
  static constexpr int kSums = 1;
  static constexpr bool kQuantised = false;
  static constexpr int kStepsTogether = 1;
  using Sum = Vector;
};

struct F32Product : PlainX {
  static constexpr int kDepth = 1;
  static constexpr int kUnits = 1;
  using Weight = Vector;
  using Broadcast = Vector;

  static QUIRE_INLINE Weight weight(const uint8_t* line, int /*unit*/) {
    return load<Vector>(line);
  }
  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) {
    float f;
    std::memcpy(&f, unit, sizeof f);
    return f - Vector{};
  }
  static QUIRE_INLINE Vector multiply_add(Vector sum, Broadcast x, Weight w) {
    return fused(sum, x, w);
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float /*inverse*/,
                       uint32_t (*out)[kSegment]) {
    const Segment segment = read_segment(x, row, k, count);
    std::memcpy(out[0], &segment, sizeof segment);
  }
};

// Where no bfloat16 instructions exist: a line holds pairs, widened by a shift and a mask.
struct Bf16Widened : PlainX {
  static constexpr int kDepth = 2;
  static constexpr int kUnits = 2;
  using Weight = Vector;
  using Broadcast = Vector;

  static QUIRE_INLINE Weight weight(const uint8_t* line, int unit) {
    const BitVector pairs = load<BitVector>(line);
    return (Vector)(unit == 0 ? pairs << 16 : pairs & 0xffff0000u);
  }
  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) {
    return F32Product::broadcast(unit);
  }
  static QUIRE_INLINE Vector multiply_add(Vector sum, Broadcast x, Weight w) {
    return fused(sum, x, w);
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float /*inverse*/,
                       uint32_t (*out)[kSegment]) {
    uint16_t segment[kSegment];
    read_segment(x, row, k, count, segment);
    for (int64_t i = 0; i < kSegment; ++i) out[0][i] = static_cast<uint32_t>(segment[i]) << 16;
  }
};

// Weights that have 16 bits in the checkpoint and meet x in float32: the sums are those of
// F32Product, and half as many bytes are read.
struct HeldBf16 : Bf16Widened {
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float inverse,
                       uint32_t (*out)[kSegment]) {
    F32Product::units_of(x, row, k, count, inverse, out);
  }
};

struct HeldF16 : HeldBf16 {
  static QUIRE_INLINE Weight weight(const uint8_t* line, int unit) { return widen_f16(line, unit); }
};

#if defined(QUIRE_DOTS_OF_BF16)
struct Bf16Dot : PlainX {
  static constexpr int kDepth = 2;
  static constexpr int kUnits = 1;
  using Weight = BitVector;
  using Broadcast = BitVector;

  static QUIRE_INLINE Weight weight(const uint8_t* line, int /*unit*/) {
    return load<BitVector>(line);
  }
  static QUIRE_INLINE Broadcast broadcast(const uint32_t* unit) { return *unit - BitVector{}; }
  static QUIRE_INLINE Vector multiply_add(Vector sum, Broadcast x, Weight w) {
    return dot_bf16(sum, x, w);
  }
  static void units_of(const Rows& x, int64_t row, int64_t k, int64_t count, float /*inverse*/,
                       uint32_t (*out)[kSegment]) {
    uint16_t segment[kSegment];
    read_segment(x, row, k, count, segment);
    std::memcpy(out[0], segment, sizeof segment);
  }
};
#endif

}  // namespace quire::gemm

// The inner loop of grouped products: rows of x with some groups of one strip.
#pragma once

#include "linear/grouped/group_numbers.h"
#include "linear/grouped/grouped_codes.h"
#include "linear/int4_weights.h"
#include "linear/int8_products.h"

namespace quire::gemm {

// Numbers of a table up to this are small: a tier may have another product for them.
#if defined(QUIRE_PAIRS_OF_BYTES)
constexpr int kLargestSmall = 63;
#else
constexpr int kLargestSmall = 0;
#endif

// Bytes of x with their signs, and numbers of the table without any. Sums have 32 bits.
template <int kPlanes_>
struct GroupedProduct : QuantisedX<kPlanes_> {
  static constexpr bool takes(int largest) { return largest > kLargestSmall; }
  static constexpr int quads_in_sum(int /*largest*/) { return 0; }  // any number
#if defined(QUIRE_DOTS_OF_BYTES)
  static constexpr int kUnits = 1;
  static QUIRE_INLINE IntVector weight(CodeBytes line, int /*unit*/) { return (IntVector)line; }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return dot_bytes(sum, w, x);
  }
  static void units_of(const int8_t (&planes)[kPlanes_][kSegment], uint32_t (*out)[kSegment]) {
    for (int p = 0; p < kPlanes_; ++p) std::memcpy(out[p], planes[p], kSegment);
  }
#else
  static constexpr int kUnits = 2;
  static QUIRE_INLINE IntVector weight(CodeBytes line, int unit) {
    typedef uint16_t Pairs __attribute__((vector_size(sizeof(IntVector))));
    const Pairs bytes = (Pairs)line;
    return (IntVector)(unit == 0 ? bytes & 0xff : bytes >> 8);
  }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return Int8Product<kPlanes_>::multiply_add(sum, x, w);
  }
  static void units_of(const int8_t (&planes)[kPlanes_][kSegment], uint32_t (*out)[kSegment]) {
    const auto pair = [](int8_t low, int8_t high) {
      return static_cast<uint32_t>(static_cast<uint16_t>(low)) |
             static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
    };
    for (int p = 0; p < kPlanes_; ++p) {
      for (int64_t i = 0; i < kSegment; i += 4) {
        const int8_t* quad = planes[p] + i;
        out[p][i / 2] = pair(quad[0], quad[2]);
        out[p][i / 2 + 1] = pair(quad[1], quad[3]);
      }
    }
  }
#endif
};

// Of small numbers: pairs of products are summed in 16 bits, and such sums widened before they
// overflow. That takes about half as many multiplications.
template <int kPlanes_>
struct SmallGroupedProduct : QuantisedX<kPlanes_> {
  static constexpr bool takes(int largest) { return largest <= kLargestSmall; }
  static constexpr int kUnits = 1;
  // How often four of K may be added to a sum of 16 bits. A byte of x is at least -128.
  static constexpr int quads_in_sum(int largest) { return 32767 / (2 * 128 * largest); }
  static void units_of(const int8_t (&planes)[kPlanes_][kSegment], uint32_t (*out)[kSegment]) {
    for (int p = 0; p < kPlanes_; ++p) std::memcpy(out[p], planes[p], kSegment);
  }
#if defined(QUIRE_PAIRS_OF_BYTES)
  static QUIRE_INLINE IntVector weight(CodeBytes line, int /*unit*/) { return (IntVector)line; }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return Pairs<true>::multiply_add(sum, x, w);
  }
  static QUIRE_INLINE IntVector widened(IntVector sum) {
    return (IntVector)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
  }
#endif
};

#if defined(QUIRE_PAIRS_OF_WORDS)
// Activations of 16 bits as they are, which gives the same sums as two planes with half of the
// multiplications. Those of a group fit in 32 bits.
struct WordGroupedProduct : QuantisedX<1> {
  static constexpr int kBytes = 2;
  static constexpr bool takes(int /*largest*/) { return true; }
  static constexpr int quads_in_sum(int /*largest*/) { return 0; }
  static constexpr int kUnits = 2;
  static QUIRE_INLINE IntVector weight(CodeBytes line, int unit) {
    return GroupedProduct<1>::weight(line, unit);
  }
  static QUIRE_INLINE IntVector multiply_add(IntVector sum, IntVector x, IntVector w) {
    return Int8Product<1>::multiply_add(sum, x, w);
  }
  static void units_of(const int8_t (&planes)[kBytes][kSegment], uint32_t (*out)[kSegment]) {
    WordProduct::words_of(planes, out[0]);
  }
};
#endif

struct GroupedArgs {
  const uint32_t* x;       // [step of 4 of K][kUnits][row][plane]
  const uint32_t* totals;  // [16 of K][row], sums of x up to there
  const float* x_scales;   // [kXBlock of K][row], where blocks of x have scales
  int64_t x_rows;          // rows of the two above
  const uint8_t* chunk;    // the first
  int64_t ahead;           // prefetch distance: bytes after the line of codes that is read
  const float* scales;     // [group][32]
  const float* minima;     // [group][32], or null
  const GroupedStrip* layout;
  int64_t first_group;
  int64_t groups;
  float* sums;  // [row][32]; those before the first group are in it
};

// Sums that fit in registers with everything else: of every row of x one of floats, and one of
// whole numbers for each plane, of two vectors of columns. And how many vectors fit with fewer
// lines: all columns of a strip are read as one stream then, which memory gives faster than every
// other piece of 64 bytes.
#if defined(__AVX512F__)
constexpr int kGroupedSums = 24;
constexpr int vectors_for(int /*lines*/) { return 2; }
#elif defined(__AVX2__)
constexpr int kGroupedSums = 12;
constexpr int vectors_for(int lines) { return lines <= 2 ? 4 : 2; }
#elif defined(__ARM_NEON)
constexpr int kGroupedSums = 16;
constexpr int vectors_for(int lines) { return lines <= 2 ? 4 : 2; }
#else
constexpr int kGroupedSums = 8;
constexpr int vectors_for(int /*lines*/) { return 2; }
#endif
constexpr int grouped_rows_for(int planes) { return kGroupedSums / (2 * (planes + 1)); }
// A few rows more are one tile: the codes are unpacked once for them, while sums of floats wait in
// memory for the end of a group. Many rows are faster without that.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kFewRowsFactor = 2;
#else
constexpr int kFewRowsFactor = 1;
#endif

// Rows of x in one tile at most, on any tier.
constexpr int64_t kMostRowsOfTiles = 8;

// Data of a group of each row of x besides its dot products. Read where it is used: registers are
// needed for other things. kGroup: its size, or 0 if that is not known before.
template <bool kBlocks, int kGroup>
struct GroupOfX {
  const uint32_t* before;
  const uint32_t* after;
  const float* scales;

  static QUIRE_INLINE int64_t size_of(const GroupedStrip& layout) {
    return kGroup > 0 ? kGroup : layout.grouping.group;
  }

  QUIRE_INLINE GroupOfX(const GroupedArgs& args, int64_t group) {
    const int64_t size = size_of(*args.layout);
    before = args.totals + group * (size / 16) * args.x_rows;
    after = before + size / 16 * args.x_rows;
    scales = args.x_scales + group * size / kXBlock * args.x_rows;
  }

  QUIRE_INLINE int32_t total(int row) const {
    return static_cast<int32_t>(after[row] - before[row]);
  }
  // The sum of x, as a number that a minimum is multiplied by.
  QUIRE_INLINE Vector scaled_total(int row) const {
    float found = static_cast<float>(total(row));
    if constexpr (kBlocks) found *= scales[row];
    return found - Vector{};
  }
  QUIRE_INLINE Vector scaled(int row, Vector scale) const {
    if constexpr (kBlocks) return scale * scales[row];
    return scale;
  }
};

// Adds the products of some quads of a step to the sums, and goes on with x.
template <class Product, int kFirst, int kQuads, class Codes, int kLines, int kVectors>
QUIRE_INLINE void add_quads(const Codes& codes, const uint8_t* line, const uint32_t*& x,
                            IntVector (&sums)[kLines][kVectors]) {
#pragma GCC unroll 8
  for (int q = kFirst; q < kFirst + kQuads; ++q) {
    CodeBytes quads[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      quads[v] = codes.quad(line + v * static_cast<int64_t>(sizeof(CodeWords)), q);
    }
#pragma GCC unroll 2
    for (int u = 0; u < Product::kUnits; ++u, x += kLines) {
#pragma GCC unroll 12
      for (int r = 0; r < kLines; ++r) {
        const auto unit = Product::broadcast(x + r);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = Product::multiply_add(sums[r][v], unit, Product::weight(quads[v], u));
        }
      }
    }
  }
}

template <class Product, int kLines, int kVectors>
QUIRE_INLINE void add_widened(const IntVector (&from)[kLines][kVectors],
                              IntVector (&sums)[kLines][kVectors]) {
#pragma GCC unroll 12
  for (int r = 0; r < kLines; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] += Product::widened(from[r][v]);
  }
}

// The same for all quads of a step, kRun of them at a time in sums of 16 bits.
template <class Product, int kRun, int kFirst, class Codes, int kLines, int kVectors>
QUIRE_INLINE void add_runs(const Codes& codes, const uint8_t* line, const uint32_t*& x,
                           IntVector (&sums)[kLines][kVectors]) {
  if constexpr (kFirst < Codes::kQuads) {
    IntVector small[kLines][kVectors] = {};
    add_quads<Product, kFirst, kRun>(codes, line, x, small);
    add_widened<Product>(small, sums);
    add_runs<Product, kRun, kFirst + kRun>(codes, line, x, sums);
  }
}

template <int64_t kStepBytes, int kVectors>
QUIRE_INLINE void fetch_step(const uint8_t* ahead) {
  for (int64_t i = 0; i < kStepBytes; i += kLineBytes) {
    __builtin_prefetch(ahead + i);
    if constexpr (kVectors * kVectorLanes * 4 > 64) __builtin_prefetch(ahead + i + 64);
  }
}

// Adds the products of a group's steps to the sums.
template <class Product, class Codes, int kLines, int kVectors>
QUIRE_INLINE void add_group(const Codes& codes, int64_t steps, int64_t ahead, const uint8_t*& line,
                            const uint32_t*& x, IntVector (&sums)[kLines][kVectors]) {
  constexpr int64_t kStepBytes = Codes::kStep.lines * kLineBytes;
  constexpr int kMost = Product::quads_in_sum(Codes::kLargest);
  if constexpr (kMost == 0) {
    for (int64_t i = 0; i < steps; ++i, line += kStepBytes) {
      fetch_step<kStepBytes, kVectors>(line + ahead);
      add_quads<Product, 0, Codes::kQuads>(codes, line, x, sums);
    }
  } else if constexpr (kMost < Codes::kQuads) {
    constexpr int kRun = kMost >= 4 ? 4 : 2;
    static_assert(Codes::kQuads % kRun == 0);
    for (int64_t i = 0; i < steps; ++i, line += kStepBytes) {
      fetch_step<kStepBytes, kVectors>(line + ahead);
      add_runs<Product, kRun, 0>(codes, line, x, sums);
    }
  } else {
    constexpr int64_t kSteps = kMost / Codes::kQuads;
    for (int64_t i = 0; i < steps; i += kSteps) {
      IntVector small[kLines][kVectors] = {};
      for (int64_t j = i; j < std::min(i + kSteps, steps); ++j, line += kStepBytes) {
        fetch_step<kStepBytes, kVectors>(line + ahead);
        add_quads<Product, 0, Codes::kQuads>(codes, line, x, small);
      }
      add_widened<Product>(small, sums);
    }
  }
}

// The sums of whole numbers that a group begins with.
template <class Product, int kLines, int kVectors, class OfX>
QUIRE_INLINE void begin_group(const OfX& of_x, int32_t zero, IntVector (&dots)[kLines][kVectors]) {
  constexpr int kPlanes = Product::kPlanes;
#pragma GCC unroll 12
  for (int r = 0; r < kLines; ++r) {
    const bool is_last = r % kPlanes == kPlanes - 1;
    const int32_t start = is_last ? -zero * of_x.total(r / kPlanes) : 0;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) dots[r][v] = start - IntVector{};
  }
}

// Data of a group of one strip besides its codes, starting at the vectors' columns.
struct GroupOfWeights {
  const float* scales;
  const uint8_t* zeros;  // or null
  const float* minima;   // or null
};

// Adds a group's sums of whole numbers to those of floats.
template <class Product, int kRows, int kLines, int kVectors, class OfX>
QUIRE_INLINE void end_group(const OfX& of_x, const GroupOfWeights& group,
                            const IntVector (&dots)[kLines][kVectors],
                            Vector (&sums)[kRows][kVectors]) {
  constexpr int kPlanes = Product::kPlanes;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const auto scale = load<Vector>(group.scales + v * kVectorLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      IntVector dot = dots[r * kPlanes][v];
      if constexpr (kPlanes == 2) dot = dot * 256 + dots[r * kPlanes + 1][v];
      if (group.zeros != nullptr) {
        dot -= (IntVector)widen_codes(group.zeros + v * kVectorLanes) * of_x.total(r);
      }
      const auto number = __builtin_convertvector(dot, Vector);
      sums[r][v] = fused(sums[r][v], number, of_x.scaled(r, scale));
    }
    if (group.minima == nullptr) continue;
    const auto minimum = load<Vector>(group.minima + v * kVectorLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sums[r][v] = fused(sums[r][v], of_x.scaled_total(r), minimum);
  }
}

// Columns `c ..` of kRows rows: adds the products of all groups to the sums.
template <class Product, class Codes, int kRows, bool kBlocks, int kGroup>
QUIRE_INLINE void grouped_columns(const GroupedArgs& args, const Codes& codes, int64_t c) {
  constexpr int kLines = kRows * Product::kPlanes;
  constexpr int kVectors = vectors_for(kLines);
  const GroupedStrip& layout = *args.layout;
  using OfX = GroupOfX<kBlocks, kGroup>;
  const int64_t group_steps = OfX::size_of(layout) / Codes::kStep.depth;
  const int32_t zero = kTables[layout.grouping.table].zero - Codes::kLess;
  const auto place = [&](int r, int v) {
    return args.sums + r * kStripColumns + c + v * kVectorLanes;
  };
  Vector sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load<Vector>(place(r, v));
  }
  const uint32_t* x = args.x;
  const uint8_t* chunk = args.chunk;
  GroupOfWeights group{args.scales + c, nullptr, args.minima ? args.minima + c : nullptr};
  for (int64_t g = 0; g < args.groups; chunk += layout.chunk_bytes) {
    const uint8_t* line = chunk + layout.codes_at + c * 4;
    if (layout.grouping.zeros) group.zeros = chunk + layout.zeros_at + c;
    for (const int64_t end = std::min(g + layout.chunk_groups, args.groups); g < end; ++g) {
      const OfX of_x(args, args.first_group + g);
      IntVector dots[kLines][kVectors];
      begin_group<Product>(of_x, zero, dots);
      add_group<Product>(codes, group_steps, args.ahead, line, x, dots);
      end_group<Product>(of_x, group, dots, sums);
      group.scales += kStripColumns;
      if (group.zeros != nullptr) group.zeros += kStripColumns;
      if (group.minima != nullptr) group.minima += kStripColumns;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(place(r, v), sums[r][v]);
  }
}

template <class Product, class Codes, int kRows, bool kBlocks, int kGroup>
QUIRE_INLINE void grouped_strip(const GroupedArgs& args) {
  const Codes codes(kTables[args.layout->grouping.table]);
  constexpr int64_t kColumns = vectors_for(kRows * Product::kPlanes) * kVectorLanes;
  for (int64_t c = 0; c < kStripColumns; c += kColumns) {
    grouped_columns<Product, Codes, kRows, kBlocks, kGroup>(args, codes, c);
  }
}

template <class Product, class Codes, int kRows, bool kBlocks>
void grouped_rows(const GroupedArgs& args) {
  // Loops with a fixed number of steps have less overhead. Of two units a quad they would
  // be unrolled too far.
  if constexpr (kBlocks && Product::kUnits == 1) {
    constexpr int kUsual = Codes::kUsualGroup;
    if (!Codes::kOtherGroups || args.layout->grouping.group == kUsual) {
      return grouped_strip<Product, Codes, kRows, kBlocks, kUsual>(args);
    }
  }
  if constexpr (!kBlocks || Product::kUnits != 1 || Codes::kOtherGroups) {
    grouped_strip<Product, Codes, kRows, kBlocks, 0>(args);
  }
}

}  // namespace quire::gemm

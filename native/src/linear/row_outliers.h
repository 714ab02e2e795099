// Outliers of a row of 8-bit activations: up to four numbers whose integers have 16 bits.
//
// A few columns of x are often many times larger than all others; with one scale for the row they
// would leave few steps to the others. So the largest number that is not an outlier becomes 127,
// and outliers are integers up to 127 * 256: their bytes are multiplied with all others, and what
// the bytes leave is multiplied with their columns of the weight here, when K is done. All sums are
// of integers.
#pragma once

#include "linear/int4_weights.h"
#include "linear/x_segment.h"
#include "simd/dots.h"

namespace quire::gemm {

constexpr auto kMostByte = static_cast<int32_t>(limit_of(1));
constexpr float kTimes = 1.5f;  // as large as the largest number that cannot be one
constexpr float kMostTimes = limit_of(2) / limit_of(1);  // times as large as a byte's

constexpr int kTops = kOutliers + 1;

// The largest magnitudes of a row, of each lane apart.
class Largest {
 public:
  QUIRE_INLINE void add(F32x16 v) {
    F32x16 left = absolute(v);
#pragma GCC unroll 8
    for (F32x16& top : lanes_) {
      const F32x16 lower = minimum(top, left);
      top = maximum(top, left);
      left = lower;
    }
  }

  // Of all lanes, the largest first.
  void of_row(float (&tops)[kTops]) const {
    float all[kTops][kLanes];
    for (int i = 0; i < kTops; ++i) store(all[i], lanes_[i]);
    std::fill(tops, tops + kTops, 0.0f);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < kTops && all[i][lane] > tops[kTops - 1]; ++i) {
        int at = kTops - 1;
        for (; at > 0 && all[i][lane] > tops[at - 1]; --at) tops[at] = tops[at - 1];
        tops[at] = all[i][lane];
      }
    }
  }

 private:
  F32x16 lanes_[kTops] = {};
};

// The first columns with these magnitudes, each another one. T: the bits of a number, kSign the
// highest of them.
template <class T, T kSign>
void find_columns(const T* row, int64_t k, const T* wanted, int count, int32_t* columns) {
  const auto is_wanted = [&](int64_t i, int j) {
    return static_cast<T>(row[i] & ~kSign) == wanted[j];
  };
  bool found[kOutliers] = {};
  int left = count;
  for (int64_t begin = 0; begin < k && left > 0; begin += kSegment) {
    const int64_t end = std::min(begin + kSegment, k);
    int any = 0;
    for (int64_t i = begin; i < end; ++i) {
      for (int j = 0; j < kOutliers; ++j) any |= is_wanted(i, j);
    }
    for (int64_t i = begin; any && i < end; ++i) {
      int j = 0;
      while (j < count && (found[j] || !is_wanted(i, j))) ++j;
      if (j == count) continue;
      found[j] = true;
      columns[j] = static_cast<int32_t>(i);
      --left;
    }
  }
}

struct OutlierRow {
  RowScale by;
  RowOutliers outliers;
};

// A NaN or an infinity anywhere in the row makes the scale NaN, and so every output of the row.
inline OutlierRow outlier_row(const Rows& x, int64_t row) {
  Extent extent;
  Largest largest;
  for (int64_t k = 0; k < x.k; k += kSegment) {
    const Segment segment = read_segment(x, row, k, std::min(kSegment, x.k - k));
    for (const F32x16& v : segment.v) {
      extent.add(v);
      largest.add(v);
    }
  }
  const float bad = extent.bad();
  float tops[kTops];
  largest.of_row(tops);
  int count = 0;
  while (count < kOutliers && tops[count] > kTimes * tops[kOutliers]) ++count;
  const float top = std::max(tops[count], tops[0] / kMostTimes);
  const float limit = limit_of(1);
  if (!(top > 0.0f) || bad != 0.0f) return {{top / limit + bad, 0.0f}, {}};
  OutlierRow found{{top / limit, limit / top}, {}};
  if (count == 0) return found;
  std::fill(tops + count, tops + kTops, tops[0]);  // columns of others are not looked for
  RowOutliers& own = found.outliers;
  if (x.dtype == DType::kF32) {
    uint32_t wanted[kOutliers];
    std::memcpy(wanted, tops, sizeof wanted);
    find_columns<uint32_t, 0x80000000u>(static_cast<const uint32_t*>(x.row(row)), x.k, wanted,
                                        count, own.columns);
  } else {
    uint16_t wanted[kOutliers];
    for (int j = 0; j < kOutliers; ++j) wanted[j] = f32_to_bf16(tops[j]);
    find_columns<uint16_t, 0x8000u>(static_cast<const uint16_t*>(x.row(row)), x.k, wanted, count,
                                    own.columns);
  }
  for (int j = 0; j < count; ++j) {
    const Segment segment = read_segment(x, row, own.columns[j], 1);
    int32_t wholes[kLanes];
    store(wholes, nearest(segment.v[0] * found.by.inverse));
    const int32_t rest = wholes[0] - std::clamp(wholes[0], -kMostByte, kMostByte);
    own.rests[j] = rest & 0xffff;
  }
  own.count = count;
  return found;
}

// Some columns of a strip at one place of K.
QUIRE_INLINE I32Part weights_at(const uint8_t* strip, bool int4, int64_t k, int64_t column) {
  const auto of_byte = static_cast<int32_t>(8 * (k % 4));
  if (!int4) {
    const auto words = load<I32Part>(strip + (k / 4 * kStripColumns + column) * 4);
    return (words << (24 - of_byte)) >> 24;
  }
  const Int4Place at(column, k);
  const auto words = load<CodeWords>(strip + at.byte - k % 4);
  const CodeWords numbers = (words >> static_cast<uint32_t>(of_byte + at.shift)) & 15u;
  const CodeWords steps =
      steps_of(widen_codes(strip + at.step), static_cast<int64_t>(at.step_shift / 4));
  return (I32Part)(numbers * steps - widen_codes(strip + at.offset));
}

// Adds to the integers of some rows with one strip what the bytes of x leave.
inline void add_outliers(const Sums& sums, const uint8_t* strip, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    const RowOutliers& own = sums.outliers[r];
    float* line = sums.data + r * kStripColumns;
    for (int64_t c = 0; own.count > 0 && c < kStripColumns; c += kPartLanes) {
      auto sum = load<I32Part>(line + c);
      for (int j = 0; j < own.count; ++j) {
        const I32Part weights = weights_at(strip, sums.int4, own.columns[j], c);
        sum = dot_words(sum, own.rests[j] - I32Part{}, weights);
      }
      store(line + c, sum);
    }
  }
}

}  // namespace quire::gemm

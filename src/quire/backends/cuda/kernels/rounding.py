"""Numbers of 8 bits, which are whole numbers or floats; and rows of activations as products with
codes read them: rounded to 8 bits, or in another order.

8-bit floats have a sign, 4 bits of exponent and 3 bits of fraction (E4M3). They are converted by
operations on whole numbers, because GPUs before compute capability 8.9 have no instruction for it.
None of them is NaN here.

Row rule: a program computes one row; the largest magnitude does not depend on an order.
"""

import triton
import triton.language as tl

OUTLIERS = tl.constexpr(4)
TIMES = tl.constexpr(1.5)
"""An outlier is so many times as large as the largest number that cannot be one."""


@triton.jit
def from_float8(codes):
    """The float32 numbers of codes, which are signed bytes."""
    bits = codes.to(tl.int32)
    # Exponent and fraction at their places in a float32, whose bias is larger by 120.
    small = (((bits & 127) << 20) | (bits & -2147483648)).to(tl.float32, bitcast=True)
    return small * 1.329227995784916e36


@triton.jit
def to_float8(numbers):
    """The codes, int32 from -128 to 127, of the nearest numbers up to 448, ties to even."""
    magnitude = tl.minimum(tl.abs(numbers), 448.0)
    bits = magnitude.to(tl.int32, bitcast=True)
    # 20 of the 23 bits of the fraction are rounded away; the exponent's bias is 7 instead of 127.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    # Below 2^-6 numbers are multiples of 2^-9. Adding 1.5 * 2^23 rounds to whole numbers.
    small = ((magnitude * 512.0 + 12582912.0) - 12582912.0).to(tl.int32)
    code = tl.where(magnitude < 0.015625, small, normal)
    return tl.where(numbers.to(tl.int32, bitcast=True) < 0, code - 128, code)


@triton.jit
def held_numbers(codes, dtype: tl.constexpr, FLOATS: tl.constexpr):
    """The numbers of a cache of 8 bits, in a type: floats, or whole numbers."""
    if FLOATS:
        numbers = from_float8(codes)
    else:
        numbers = codes.to(tl.float32)
    return numbers.to(dtype)


@triton.jit
def _next_largest(source, K, most, most_at, inside, LINES: tl.constexpr):
    """The magnitude that follows `most` of column `most_at` in descending order, and its column; of
    equal ones the first. 0 if none is left."""
    best, best_at = tl.full([], -1.0, tl.float32), tl.full([], 0, tl.int32)
    for begin in range(0, K, LINES * 32):
        at = begin + inside
        numbers = tl.abs(tl.load(source + at, mask=at < K, other=0.0).to(tl.float32))
        is_left = (at < K) & ((numbers < most) | ((numbers == most) & (at > most_at)))
        numbers = tl.where(is_left, numbers, -1.0)
        largest = tl.max(tl.max(numbers, 1), 0)
        column = tl.min(tl.min(tl.where(numbers == largest, at, K), 1), 0)
        best_at = tl.where(largest > best, column, best_at)
        best = tl.maximum(best, largest)
    return tl.maximum(best, 0.0), best_at


@triton.jit
def _store_rest(source, column, magnitude, inverse, outliers, number: tl.constexpr):
    """A large number's column, and what 8 bits do not hold of it."""
    whole = (tl.load(source + column).to(tl.float32) * inverse + 12582912.0) - 12582912.0
    rest = whole - tl.minimum(tl.maximum(whole, -127.0), 127.0)
    tl.store(outliers + number, column)
    tl.store(outliers + OUTLIERS + number, tl.where(magnitude > 0.0, rest, 0.0).to(tl.int32))


@triton.jit
def _inlier(source, K, largest, bad, outliers, inside, LINES: tl.constexpr):
    """The largest magnitude of a row that is not an outlier, but so large that outliers fit in 16
    bits. Stores the outliers: four columns, then what 8 bits do not hold of their numbers."""
    m0, at0 = _next_largest(source, K, float("inf"), -1, inside, LINES)
    m1, at1 = _next_largest(source, K, m0, at0, inside, LINES)
    m2, at2 = _next_largest(source, K, m1, at1, inside, LINES)
    m3, at3 = _next_largest(source, K, m2, at2, inside, LINES)
    m4, _ = _next_largest(source, K, m3, at3, inside, LINES)
    limit = TIMES * m4
    found = tl.where(m3 > limit, m4, m3)
    found = tl.where(m2 > limit, found, m2)
    found = tl.where(m1 > limit, found, m1)
    found = tl.where(m0 > limit, found, m0)
    found = tl.maximum(found, largest * 0.00390625)
    is_number = (found > 0.0) & (bad == 0)
    inverse = tl.where(is_number, tl.div_rn(127.0, tl.where(is_number, found, 1.0)), 0.0)
    _store_rest(source, at0, tl.where(is_number, m0, 0.0), inverse, outliers, 0)
    _store_rest(source, at1, tl.where(is_number, m1, 0.0), inverse, outliers, 1)
    _store_rest(source, at2, tl.where(is_number, m2, 0.0), inverse, outliers, 2)
    _store_rest(source, at3, tl.where(is_number, m3, 0.0), inverse, outliers, 3)
    return found


@triton.jit
def prepare(
    x, order, out, scales, outliers, K, width, stride_x, stride_out, stride_scales, has_order,
    LINES: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """out[row, j] = x[row, order[j]] for j < K, then zeros up to `width`. MODE 1: rounded to
    integers with a scale of the row, to nearest with ties to even; MODE 2: with a scale for each 32
    columns; MODE 3: with a scale of the row that leaves out its outliers, whose rests are stored. A
    row that is not finite has scales of NaN."""
    row = tl.program_id(0)
    source, target = x + row.to(tl.int64) * stride_x, out + row.to(tl.int64) * stride_out
    lines = tl.arange(0, LINES)
    inside = lines[:, None] * 32 + tl.arange(0, 32)[None, :]
    largest = tl.full([], 0.0, tl.float32)
    bad = tl.full([], 0, tl.int32)
    if MODE > 0:
        for begin in range(0, K, LINES * 32):
            at = begin + inside
            numbers = tl.load(source + at, mask=at < K, other=0.0).to(tl.float32)
            # The difference of an infinity or a NaN with itself is not 0.
            bad = tl.maximum(bad, tl.max(tl.max((numbers - numbers != 0.0).to(tl.int32), 1), 0))
            largest = tl.maximum(largest, tl.max(tl.max(tl.abs(numbers), 1), 0))
        if MODE == 3:
            own = outliers + row.to(tl.int64) * (2 * OUTLIERS)
            largest = _inlier(source, K, largest, bad, own, inside, LINES)
        if MODE != 2:
            scale = tl.where(bad != 0, float("nan"), tl.div_rn(largest, 127.0))
            tl.store(scales + row * stride_scales, scale)
    for begin in range(0, width, LINES * 32):
        at = begin + inside
        chosen = at
        if has_order:
            chosen = tl.load(order + at, mask=at < K, other=0)
        numbers = tl.load(source + chosen, mask=at < K, other=0.0).to(tl.float32)
        if MODE > 0:
            most = tl.zeros([LINES, 1], tl.float32) + largest
            if MODE == 2:
                most = tl.max(tl.abs(numbers), 1)[:, None]
                scale = tl.where(bad != 0, float("nan"), tl.div_rn(most, 127.0))
                place = begin // 32 + lines[:, None]
                tl.store(scales + row * stride_scales + place, scale, mask=place * 32 < width)
            is_number = (most > 0.0) & (bad == 0)
            inverse = tl.div_rn(127.0, tl.where(is_number, most, 1.0))
            # Adding this number rounds to whole numbers.
            whole = (numbers * inverse + 12582912.0) - 12582912.0
            whole = tl.minimum(tl.maximum(whole, -127.0), 127.0)
            numbers = tl.where(is_number, whole, 0.0)
        tl.store(target + at, numbers.to(out.dtype.element_ty), mask=at < width)

"""y = x @ w.T + bias with a weight of codes, and rows of a table of codes. See `packing/layout.py`.

Row rule: that of `products.py`. In a chunk, the products of STEP columns are summed, and scaled
where scales are those of groups. Codes are whole numbers of at most 8 bits, or 8-bit floats, so x's
type holds them without rounding.
"""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.products import chunks_of_tile, rows_of_tile, store_tile
from quire.backends.cuda.kernels.rounding import from_float8


@triton.jit
def _wide_codes(codes, KIND: tl.constexpr):
    """Numbers of codes of 8 bits: signed bytes (KIND 0), or floats (KIND 1)."""
    if KIND == 0:
        numbers = codes.to(tl.float32)
    else:
        numbers = from_float8(codes)
    return numbers


@triton.jit
def _narrow_codes(codes, zero, step, low, high, KIND: tl.constexpr):
    """Whole numbers of codes of 4 bits, int32."""
    if KIND == 2:
        numbers = codes - zero
    elif KIND == 3:
        words = tl.where(codes >= 8, high, low)
        bytes = (words >> ((codes & 7) * 8).to(tl.int64)).to(tl.int8)
        numbers = bytes.to(tl.int32) - zero
    else:
        numbers = codes * step - zero
    return numbers


@triton.jit
def _as_x(numbers, x, WHOLE: tl.constexpr):
    """Whole numbers in the type of x."""
    if WHOLE:
        result = numbers.to(tl.int8)
    else:
        result = numbers.to(tl.float32).to(x.dtype.element_ty)
    return result


@triton.jit
def _scaled(acc, of_rows, of_columns):
    """Whole numbers, or sums of codes, times the scales of rows and columns."""
    return acc.to(tl.float32) * tl.load(of_columns)[None, :] * tl.load(of_rows)[:, None]


@triton.jit
def _added(
    acc, a, b, x_scales, x_row, arrays, line, sub_at, k, lines, nest, x_group, xs_row, xs_step,
    BY_ROW: tl.constexpr, MINIMA: tl.constexpr,
):  # fmt: skip
    """`acc` with the products of a step: a [M, STEP], b [STEP, N]."""
    scales, subs, _, _, minima, min_subs = arrays
    if BY_ROW:
        acc = tl.dot(a, b, acc=acc, input_precision="ieee", out_dtype=acc.dtype)
    else:
        product = tl.dot(a, b, input_precision="ieee")
        of_nest = k // nest * lines + line
        scale = tl.load(scales + of_nest) * tl.load(subs + sub_at).to(tl.float32)
        product = product * scale[None, :]
        if MINIMA:
            sums = tl.sum(a.to(tl.float32), 1)
            minimum = tl.load(minima + of_nest) * tl.load(min_subs + sub_at).to(tl.float32)
            product += sums[:, None] * minimum[None, :]
        factors = tl.load(x_scales + x_row * xs_row + (k // x_group) * xs_step)
        acc = acc + product * factors[:, None]
    return acc


@triton.jit
def _narrow_step(
    packed, half, arrays, line, place, low, high, zeros_by_group, zeros_by_column, lines, x,
    KIND: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The numbers [STEP, N] of one half of bytes of two codes, in the type of x."""
    _, _, zeros, steps, _, _ = arrays
    zero = tl.load(zeros + place * zeros_by_group + line * zeros_by_column)
    step = zero
    if KIND == 4:
        step = tl.load(steps + place * lines + line)
    numbers = _narrow_codes(
        (packed >> (4 * half)) & 15, zero.to(tl.int32)[None, :], step.to(tl.int32)[None, :], low,
        high, KIND,
    )  # fmt: skip
    return _as_x(numbers, x, WHOLE)


@triton.jit
def _levels(
    codes, arrays, column, line, col_at, is_read, group, lines, STEP: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """The whole numbers of codes at some columns, int8 [columns, N]."""
    _, _, zeros, steps, _, _ = arrays
    if KIND == 0:
        numbers = tl.load(codes + col_at[None, :] + column, mask=is_read, other=0)
    else:
        byte = column // (2 * STEP) * STEP + column % STEP
        packed = tl.load(codes + col_at[None, :] + byte, mask=is_read, other=0).to(tl.int32)
        in_group = column // group * lines + line[None, :]
        step = tl.load(steps + in_group, mask=is_read, other=0).to(tl.int32)
        zero = tl.load(zeros + in_group, mask=is_read, other=0).to(tl.int32)
        numbers = (((packed >> (column // STEP % 2 * 4)) & 15) * step - zero).to(tl.int8)
    return numbers


@triton.jit
def _of_outliers(
    outliers, codes, arrays, line, col_at, found, lists, counts, num_rows, pairs_of_row,
    has_experts, group, lines, STEP: tl.constexpr, KIND: tl.constexpr, OUTLIERS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The products of what 8 bits do not hold of the rows' outliers: whole numbers, int32 [M, N].
    Of 32 outliers at once; a row of `a` has those of this row, and zeros for others."""
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for first in range(0, BLOCK_M * OUTLIERS, 32):
        number = first + tl.arange(0, 32)
        place = number // OUTLIERS
        is_row, _, x_row, _, _ = rows_of_tile(
            found, lists, counts, num_rows, pairs_of_row, has_experts, place, BLOCK_M
        )
        at = outliers + x_row * (2 * OUTLIERS) + number % OUTLIERS
        rest = tl.load(at + OUTLIERS, mask=is_row, other=0)
        if tl.max(tl.abs(rest), 0) > 0:
            column = tl.load(at, mask=is_row, other=0)[:, None]
            is_read = (rest != 0)[:, None] & (line >= 0)[None, :]
            b = _levels(codes, arrays, column, line, col_at, is_read, group, lines, STEP, KIND)
            low = ((rest + 128) & 255) - 128
            is_own = tl.arange(0, BLOCK_M)[:, None] == place[None, :]
            both = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
            for part in range(2):
                byte = tl.where(part == 0, (rest - low) >> 8, low)
                a = tl.where(is_own, byte[None, :], 0).to(tl.int8)
                both = tl.dot(a, b, acc=both * 256, out_dtype=tl.int32)
            total += both
    return total


@triton.jit
def multiply(
    x, x_scales, outliers, codes, scales, subs, zeros, steps, minima, min_subs, bias, y, parts,
    found, lists, counts, num_rows, pairs_of_row, low, high, N, K, lines, group, nest, x_group,
    stride_x, xs_row, xs_step, stride_codes, zeros_by_group, zeros_by_column, subs_by_group,
    subs_by_column, y_row, has_bias, has_experts, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STEP: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, KIND: tl.constexpr,
    BY_ROW: tl.constexpr, MINIMA: tl.constexpr, OUTLIERS: tl.constexpr,
):  # fmt: skip
    """K is a multiple of 16; codes are padded to whole steps. `lines` is N times the number of
    experts. `x_scales` are those of rounded x: of each row, or of `x_group` columns. OUTLIERS: x is
    int8, and a row has so many numbers that may be larger; their part of y comes before the first
    chunk. With SPLIT, program z computes part z."""
    NARROW: tl.constexpr = KIND >= 2
    WHOLE: tl.constexpr = OUTLIERS > 0
    tl.static_assert(CHUNK % (2 * STEP) == 0)
    is_row, row, x_row, expert, count = rows_of_tile(
        found, lists, counts, num_rows, pairs_of_row, has_experts, tl.arange(0, BLOCK_M), BLOCK_M
    )
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Columns after the last one are computed from the last one, and are not stored.
    line = expert * N + tl.minimum(cols, N - 1)
    arrays = (scales, subs, zeros, steps, minima, min_subs)
    row_at = x_row * stride_x
    col_at = line.to(tl.int64) * stride_codes
    along = tl.arange(0, STEP)
    first, end = chunks_of_tile(K, count, CHUNK, SPLIT)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if WHOLE:
        has_outliers = count > 0
        if SPLIT:
            first, end = tl.maximum(first - 1, 0), first
            has_outliers = end == 0
        if has_outliers:
            rest = _of_outliers(
                outliers, codes, arrays, line, col_at, found, lists, counts, num_rows,
                pairs_of_row, has_experts, group, lines, STEP, KIND, OUTLIERS, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            total += _scaled(rest, x_scales + x_row * xs_row, scales + line)
    for chunk in range(first, end):
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if WHOLE else tl.float32)
        for k in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, K), STEP):
            at, place = k + along, k // group
            a = tl.load(x + row_at[:, None] + at[None, :], mask=(at < K)[None, :], other=0)
            if NARROW:
                # Bytes are read for each half of their bits: with both products in one pass, groups
                # of threads would compute the same rows.
                byte = k // (2 * STEP) * STEP + along
                packed = tl.load(codes + col_at[None, :] + byte[:, None]).to(tl.int32)
                b = _narrow_step(
                    packed, k // STEP % 2, arrays, line, place, low, high, zeros_by_group,
                    zeros_by_column, lines, x, KIND, WHOLE,
                )  # fmt: skip
            else:
                b = tl.load(codes + col_at[None, :] + at[:, None])
                if not WHOLE:
                    b = _as_x(_wide_codes(b, KIND), x, WHOLE)
            acc = _added(
                acc, a, b, x_scales, x_row, arrays, line,
                place * subs_by_group + line * subs_by_column, k, lines, nest, x_group, xs_row,
                xs_step, BY_ROW, MINIMA,
            )  # fmt: skip
        if BY_ROW:
            total += _scaled(acc, x_scales + x_row * xs_row, scales + line)
        else:
            total += acc
    store_tile(
        total, bias, y, parts, expert * N, row * y_row, row, cols, is_row, num_rows, N, has_bias,
        SPLIT,
    )  # fmt: skip


@triton.jit
def take(
    places, codes, scales, subs, zeros, steps, minima, min_subs, out, low, high, N, columns,
    group, nest, half, stride_codes, zeros_by_group, zeros_by_column, subs_by_group,
    subs_by_column, has_minima, out_row, factor,
    KIND: tl.constexpr, BY_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = factor * row `places[row]` of a table [N, columns]. `half`: the columns of 4-bit
    codes whose bytes hold as many others in their high bits."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < columns
    column, place = tl.load(places + row), at // group
    line = codes + column.to(tl.int64) * stride_codes
    if KIND >= 2:
        byte = at // (2 * half) * half + at % half
        packed = tl.load(line + byte, mask=is_there, other=0).to(tl.int32)
        packed = packed >> (at // half % 2 * 4)
        zero_at = zeros + place * zeros_by_group + column * zeros_by_column
        zero = tl.load(zero_at, mask=is_there, other=0).to(tl.int32)
        step = zero
        if KIND == 4:
            step = tl.load(steps + place * N + column, mask=is_there, other=0).to(tl.int32)
        numbers = _narrow_codes(packed & 15, zero, step, low, high, KIND).to(tl.float32)
    else:
        numbers = _wide_codes(tl.load(line + at, mask=is_there, other=0), KIND)
    if BY_ROW:
        numbers = numbers * tl.load(scales + column)
    else:
        sub_at, of_nest = place * subs_by_group + column * subs_by_column, at // nest * N + column
        sub = tl.load(subs + sub_at, mask=is_there, other=0).to(tl.float32)
        numbers = numbers * (tl.load(scales + of_nest, mask=is_there, other=0.0) * sub)
        if has_minima:
            sub = tl.load(min_subs + sub_at, mask=is_there, other=0).to(tl.float32)
            numbers += tl.load(minima + of_nest, mask=is_there, other=0.0) * sub
    target = out + row.to(tl.int64) * out_row + at
    tl.store(target, (numbers * factor).to(out.dtype.element_ty), mask=is_there)

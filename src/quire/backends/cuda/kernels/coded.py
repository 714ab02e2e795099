"""y = x @ w.T + bias with a weight of codes, and rows of a table of codes. See `packing/layout.py`.

Row rule: that of `linear.py`. In a chunk, the products of STEP columns are summed, and scaled where
scales are those of groups. Codes are whole numbers of at most 8 bits, or 8-bit floats, so x's type
holds them without rounding.
"""

import triton
import triton.language as tl


@triton.jit
def _wide_codes(codes, KIND: tl.constexpr):
    """Numbers of codes of 8 bits: signed bytes (KIND 0), or floats (KIND 1)."""
    if KIND == 0:
        numbers = codes.to(tl.float32)
    else:
        bits = codes.to(tl.int32)
        exponent, mantissa = (bits >> 3) & 15, bits & 7
        # In units of 2^-9, the smallest number.
        normal = (mantissa + 8) << tl.maximum(exponent - 1, 0)
        magnitude = tl.where(exponent == 0, mantissa, normal).to(tl.float32) * 0.001953125
        numbers = tl.where(bits < 0, -magnitude, magnitude)
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
def _added(
    acc, a, b, x_scales, scales, subs, minima, min_subs, rows, cols, sub_at, nest, k, N, x_group,
    xs_row, xs_step, BY_ROW: tl.constexpr, MINIMA: tl.constexpr,
):  # fmt: skip
    """`acc` with the products of a step: a [M, STEP], b [STEP, N]."""
    if BY_ROW:
        acc = tl.dot(a, b, acc=acc, input_precision="ieee", out_dtype=acc.dtype)
    else:
        product = tl.dot(a, b, input_precision="ieee")
        scale = tl.load(scales + k // nest * N + cols) * tl.load(subs + sub_at).to(tl.float32)
        product = product * scale[None, :]
        if MINIMA:
            sums = tl.sum(a.to(tl.float32), 1)
            minimum = tl.load(minima + k // nest * N + cols)
            minimum = minimum * tl.load(min_subs + sub_at).to(tl.float32)
            product += sums[:, None] * minimum[None, :]
        factors = tl.load(x_scales + rows * xs_row + (k // x_group) * xs_step)
        acc = acc + product * factors[:, None]
    return acc


@triton.jit
def multiply(
    x, x_scales, codes, scales, subs, zeros, steps, minima, min_subs, bias, y, parts, low, high,
    num_rows, N, K, group, nest, x_group, stride_x, xs_row, xs_step, stride_codes, zeros_by_group,
    zeros_by_column, subs_by_group, subs_by_column, y_row, has_bias, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr,
    KIND: tl.constexpr, BY_ROW: tl.constexpr, MINIMA: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """K is a multiple of 16; codes are padded to whole steps. `x_scales` are those of rounded x:
    of each row, or of `x_group` columns. WHOLE: x is int8. With SPLIT, program z computes
    chunk z."""
    NARROW: tl.constexpr = KIND >= 2
    WIDTH: tl.constexpr = 2 * STEP if NARROW else STEP
    tl.static_assert(CHUNK % WIDTH == 0)
    tile_m, tile_n, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns after the last one are computed from the last one, and are not stored.
    from_row, from_col = tl.minimum(rows, num_rows - 1), tl.minimum(cols, N - 1)
    row_at = from_row.to(tl.int64) * stride_x
    col_at = from_col.to(tl.int64) * stride_codes
    along = tl.arange(0, STEP)
    first, end = 0, tl.cdiv(K, CHUNK)
    if SPLIT:
        first, end = split, split + 1
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for chunk in range(first, end):
        if WHOLE:
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
        else:
            acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, K), WIDTH):
            if NARROW:
                packed = tl.load(codes + col_at[None, :] + (k // 2 + along)[:, None]).to(tl.int32)
                for half in tl.static_range(2):
                    begin = k + half * STEP
                    at, place = begin + along, begin // group
                    a = tl.load(x + row_at[:, None] + at[None, :], mask=(at < K)[None, :], other=0)
                    zero = tl.load(zeros + place * zeros_by_group + from_col * zeros_by_column)
                    step = zero
                    if KIND == 4:
                        step = tl.load(steps + place * N + from_col)
                    b = _narrow_codes(
                        (packed >> (4 * half)) & 15, zero.to(tl.int32)[None, :],
                        step.to(tl.int32)[None, :], low, high, KIND,
                    )  # fmt: skip
                    b = _as_x(b, x, WHOLE)
                    acc = _added(
                        acc, a, b, x_scales, scales, subs, minima, min_subs, from_row, from_col,
                        place * subs_by_group + from_col * subs_by_column, nest, begin, N, x_group,
                        xs_row, xs_step, BY_ROW, MINIMA,
                    )  # fmt: skip
            else:
                at = k + along
                a = tl.load(x + row_at[:, None] + at[None, :], mask=(at < K)[None, :], other=0)
                b = tl.load(codes + col_at[None, :] + at[:, None])
                if not WHOLE:
                    b = _as_x(_wide_codes(b, KIND), x, WHOLE)
                acc = _added(
                    acc, a, b, x_scales, scales, subs, minima, min_subs, from_row, from_col,
                    k // group * subs_by_group + from_col * subs_by_column, nest, k, N, x_group,
                    xs_row, xs_step, BY_ROW, MINIMA,
                )  # fmt: skip
        if BY_ROW:
            of_rows, of_cols = tl.load(x_scales + from_row * xs_row), tl.load(scales + from_col)
            total += acc.to(tl.float32) * of_cols[None, :] * of_rows[:, None]
        else:
            total += acc
    stored = (rows < num_rows)[:, None] & (cols < N)[None, :]
    if SPLIT:
        at = (split * num_rows + rows[:, None]).to(tl.int64) * N + cols[None, :]
        tl.store(parts + at, total, mask=stored)
    else:
        if has_bias:
            total += tl.load(bias + cols, mask=cols < N, other=0.0)[None, :]
        at = rows[:, None].to(tl.int64) * y_row + cols[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=stored)


@triton.jit
def take(
    places, codes, scales, subs, zeros, steps, minima, min_subs, out, low, high, N, columns,
    factor, group, nest, half, stride_codes, zeros_by_group, zeros_by_column, subs_by_group,
    subs_by_column, has_minima, out_row,
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

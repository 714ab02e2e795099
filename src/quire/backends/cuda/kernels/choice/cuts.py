"""The search for the limits of top_k and top_p: the lowest logit that is kept, digit by digit.

Row rule: as in `tokens.py`.
"""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.choice.tokens import (
    BINS,
    FIELDS,
    MANY,
    ROUNDS,
    STATE,
    key_of,
    number_of,
    tile_of,
    top_of,
    weight_of,
    weights_of,
)


@triton.jit
def _totals(bins, num_chunks, BUNCH: tl.constexpr):
    """The sums of all chunks' bins."""
    bin_at = tl.arange(0, BINS)
    totals = tl.zeros([BINS], tl.float64)
    for first in range(0, num_chunks, BUNCH):
        at = first + tl.arange(0, BUNCH)
        part = bins + at[:, None] * BINS + bin_at[None, :]
        totals += tl.sum(tl.load(part, mask=(at < num_chunks)[:, None], other=0.0), 0)
    return totals


@triton.jit
def narrow(
    logits, numbers, tops, bins, states, allowed, width, num_rows, num_chunks, step,
    CUT: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, BUNCH: tl.constexpr,
):  # fmt: skip
    """One digit more of the limit's key. CUT 0: top_k, the sum is the number of tokens; CUT 1:
    top_p, the sum is that of weights. A round reads the bins that the round before it filled. After
    the last digit it finds how many tokens of the chunk may equal the limit."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    number, row_tops = numbers + row * FIELDS, tops + row * num_chunks
    states += row * (2 * STATE)
    allowed += row * 2 * num_chunks
    temperature = tl.load(number)
    is_on = (temperature > 0.0) & (tl.load(number + 4) > 0.0)
    if CUT == 1:
        is_on = (temperature > 0.0) & (tl.load(number + 3) < 1.0)
    if is_on:
        top = top_of(row_tops, num_chunks, BUNCH)
        state = states + CUT * STATE + 4 * step
        prefix = tl.full([], 0, tl.int64)
        above = tl.full([], 0.0, tl.float64)
        wanted = tl.load(number + 4)
        size = num_rows * num_chunks * BINS
        filled = bins + ((step + 1) % 2) * size + row * num_chunks * BINS
        if step > 0:
            digits = tl.arange(0, BINS)
            totals = _totals(filled, num_chunks, BUNCH)
            if step > 1:
                prefix = tl.load(state - 4).to(tl.int64)
                above = tl.load(state - 3)
                wanted = tl.load(state - 2)
            elif CUT == 1:
                wanted = tl.load(number + 3) * tl.sum(totals, 0)
            later = digits[None, :] >= digits[:, None]
            reached = above + tl.sum(tl.where(later, totals[None, :], 0.0), 1)
            digit = tl.max(tl.where((reached >= wanted) & (totals > 0.0), digits, -1), 0)
            lowest = tl.min(tl.where(totals > 0.0, digits, BINS - 1), 0)
            digit = tl.where(digit < 0, lowest, digit)
            above += tl.sum(tl.where(digits > digit, totals, 0.0), 0)
            prefix = prefix * BINS + digit
            if chunk == 0:
                tl.store(state, prefix.to(tl.float64))
                tl.store(state + 1, above)
                tl.store(state + 2, wanted)
            if step == ROUNDS:
                one = tl.full([], 1.0, tl.float64)
                if CUT == 1:
                    one = weight_of(number_of(prefix), top, temperature)
                before = tl.full([], 0.0, tl.float64)
                for first in range(0, chunk, BUNCH):
                    at = first + tl.arange(0, BUNCH)
                    ties = tl.load(filled + at * BINS + digit, mask=at < chunk, other=0.0)
                    before += tl.sum(tl.floor(ties / one + 0.5), 0)
                most = tl.ceil((wanted - above) / one)
                most = tl.where(one > 0.0, tl.maximum(most, 1.0) - before, MANY)
                most = tl.minimum(tl.maximum(most, 0.0), MANY).to(tl.int32)
                tl.store(allowed + CUT * num_chunks + chunk, most)
        if step < ROUNDS:
            shift = (28 - 4 * step).to(tl.int64)
            found = tl.zeros([BINS], tl.float64)
            seen_k = tl.full([], 0, tl.int32)
            seen_p = tl.full([], 0, tl.int32)
            for first in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, width), TILE):
                _, is_in, x = tile_of(logits, width, first, TILE)
                weight, seen_k, seen_p = weights_of(
                    x, is_in, top, number, states, allowed, chunk, num_chunks, seen_k, seen_p, CUT
                )
                if CUT == 0:
                    is_open = is_in & (weight >= tl.load(number + 2))
                    weight = tl.where(is_open, 1.0, 0.0).to(tl.float64)
                key = key_of(x)
                weight = tl.where((key >> shift) // BINS == prefix, weight, 0.0)
                digit_of = ((key >> shift) % BINS).to(tl.int32)
                is_own = digit_of[:, None] == tl.arange(0, BINS)[None, :]
                found += tl.sum(tl.where(is_own, weight[:, None], 0.0), 0)
            target = bins + (step % 2) * size + (row * num_chunks + chunk) * BINS
            tl.store(target + tl.arange(0, BINS), found)

"""The choice of a token from each row of logits, as `quire/sampling/reference.py` specifies it.

A row is cut into chunks of CHUNK logits, and each program has one chunk of one row, tile by tile.
`change` and `forbid` change logits in place. `survey` finds each chunk's largest logit, `narrow` of
`cuts.py` the limits of top_k and top_p, `weigh` the sum of each chunk's weights, and `draw` the
token.

Row rule: sums are those of tiles, added in order, and then those of chunks, added in order.

FIELDS numbers of float64 belong to a row: temperature, random number, min_p, top_p, top_k, the
place where its token is kept or -1, 1 / repetition penalty, repetition penalty, frequency penalty,
presence penalty, and the number of its mask or -1.
"""

import triton
import triton.language as tl

FIELDS = tl.constexpr(12)
ROUNDS = tl.constexpr(8)
"""Hexadecimal digits of a key."""
BINS = tl.constexpr(16)
STATE = tl.constexpr(36)
"""Numbers of a row's search, four for each round and for its end: the digits of the limit that are
known, the sum of all above them, the sum that is wanted, and an unused one."""
MANY = tl.constexpr(1 << 30)


@triton.jit
def key_of(x):
    """A whole number from 0 to 2**32 - 1 in the order of the float32 numbers."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) + 2147483648


@triton.jit
def number_of(key):
    """The float32 number of a key."""
    bits = (key - 2147483648).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, top, temperature):
    """Probabilities up to a factor, 1 for the largest logit."""
    z, most = x.to(tl.float64) / temperature, top.to(tl.float64) / temperature
    return tl.where(z == most, 1.0, tl.exp(z - most))


@triton.jit
def top_of(tops, num_chunks, BUNCH: tl.constexpr):
    """The largest logit of a row; NaN if it has one."""
    top = tl.full([], float("-inf"), tl.float32)
    is_nan = tl.full([], 0, tl.int32)
    for first in range(0, num_chunks, BUNCH):
        at = first + tl.arange(0, BUNCH)
        part = tl.load(tops + at, mask=at < num_chunks, other=float("-inf"))
        is_nan = tl.maximum(is_nan, tl.max((part != part).to(tl.int32), 0))
        top = tl.maximum(top, tl.max(tl.where(part != part, float("-inf"), part), 0))
    return tl.where(is_nan != 0, float("nan"), top)


@triton.jit
def tile_of(logits, width, first, TILE: tl.constexpr):
    """A tile of this program's row of logits, from place `first` on: the places, whether they are
    in the row, and the numbers, -inf after its end."""
    at = first + tl.arange(0, TILE)
    source = logits + tl.program_id(0).to(tl.int64) * width + at
    return at, at < width, tl.load(source, mask=at < width, other=float("-inf"))


@triton.jit
def _within(key, is_open, states, allowed, is_on, chunk, seen):
    """Which open numbers are above a limit, or are among the first that equal it; and how many
    that equal it there are up to here."""
    if is_on:
        limit = tl.load(states + 4 * ROUNDS).to(tl.int64)
        is_tie = is_open & (key == limit)
        rank = seen + tl.cumsum(is_tie.to(tl.int32), 0)
        is_open = is_open & ((key > limit) | (is_tie & (rank <= tl.load(allowed + chunk))))
        seen += tl.sum(is_tie.to(tl.int32), 0)
    return is_open, seen


@triton.jit
def weights_of(
    x, is_in, top, number, states, allowed, chunk, num_chunks, seen_k, seen_p, CUTS: tl.constexpr
):  # fmt: skip
    """The weights of a tile, 0 for those that may not be chosen. CUTS: 1 with the limit of top_k, 2
    with both limits."""
    weight = weight_of(x, top, tl.load(number))
    is_open = is_in & (weight >= tl.load(number + 2))
    if CUTS:
        key = key_of(x)
        is_on = tl.load(number + 4) > 0.0
        is_open, seen_k = _within(key, is_open, states, allowed, is_on, chunk, seen_k)
        if CUTS == 2:
            is_on, allowed = tl.load(number + 3) < 1.0, allowed + num_chunks
            is_open, seen_p = _within(key, is_open, states + STATE, allowed, is_on, chunk, seen_p)
    return tl.where(is_open, weight, 0.0), seen_k, seen_p


@triton.jit
def survey(
    logits, tops, firsts, width, num_chunks, CHUNK: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The largest logit of a chunk, NaN if it has one, and the first token that has it."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    top = tl.full([], float("-inf"), tl.float32)
    found = tl.full([], 0, tl.int32) + chunk * CHUNK
    is_nan = tl.full([], 0, tl.int32)
    for first in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, width), TILE):
        at, _, x = tile_of(logits, width, first, TILE)
        is_nan = tl.maximum(is_nan, tl.max((x != x).to(tl.int32), 0))
        most = tl.max(tl.where(x != x, float("-inf"), x), 0)
        place = tl.min(tl.where(x == most, at, MANY), 0)
        found = tl.where(most > top, place, found)
        top = tl.maximum(top, most)
    tl.store(tops + row * num_chunks + chunk, tl.where(is_nan != 0, float("nan"), top))
    tl.store(firsts + row * num_chunks + chunk, found)


@triton.jit
def forbid(logits, numbers, masks, width, num_words, CHUNK: tl.constexpr, TILE: tl.constexpr):
    """Logits become -inf where the row's mask has no bit."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    mask = tl.load(numbers + row * FIELDS + 10).to(tl.int32)
    if mask >= 0:
        for first in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, width), TILE):
            at = first + tl.arange(0, TILE)
            word = tl.load(masks + mask * num_words + at // 32, mask=at < width, other=-1)
            is_forbidden = ((word >> (at % 32)) & 1) == 0
            target = logits + row.to(tl.int64) * width + at
            tl.store(target, float("-inf"), mask=(at < width) & is_forbidden)


@triton.jit
def change(logits, numbers, starts, ids, values, width, OP: tl.constexpr, TILE: tl.constexpr):
    """The tokens of a row's list, each of which occurs once. OP 0: a number is added to the logit.
    OP 1: penalties, for tokens that occurred `values` times in the reply."""
    row = tl.program_id(0)
    number = numbers + row * FIELDS
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    for first in range(begin, end, TILE):
        at = first + tl.arange(0, TILE)
        is_in = at < end
        target = logits + row.to(tl.int64) * width + tl.load(ids + at, mask=is_in, other=0)
        value = tl.load(values + at, mask=is_in, other=0.0)
        x = tl.load(target, mask=is_in, other=0.0)
        if OP == 0:
            x = x + value
        else:
            shrink, grow = tl.load(number + 6).to(tl.float32), tl.load(number + 7).to(tl.float32)
            x = x * tl.where(x > 0.0, shrink, grow)
            x = x - tl.load(number + 8).to(tl.float32) * value
            x = x - tl.where(value > 0.0, tl.load(number + 9).to(tl.float32), 0.0)
        tl.store(target, x, mask=is_in)


@triton.jit
def weigh(
    logits, numbers, tops, states, allowed, sums, width, num_chunks, CUTS: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr, BUNCH: tl.constexpr,
):  # fmt: skip
    """The sum of the weights of a chunk's tokens that may be chosen."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    number = numbers + row * FIELDS
    if tl.load(number) > 0.0:
        top = top_of(tops + row * num_chunks, num_chunks, BUNCH)
        total = tl.full([], 0.0, tl.float64)
        seen_k = tl.full([], 0, tl.int32)
        seen_p = tl.full([], 0, tl.int32)
        for first in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, width), TILE):
            _, is_in, x = tile_of(logits, width, first, TILE)
            weight, seen_k, seen_p = weights_of(
                x, is_in, top, number, states + row * (2 * STATE),
                allowed + row * 2 * num_chunks, chunk, num_chunks, seen_k, seen_p, CUTS,
            )  # fmt: skip
            total += tl.sum(weight, 0)
        tl.store(sums + row * num_chunks + chunk, total)


@triton.jit
def draw(
    logits, numbers, raw_tops, tops, firsts, states, allowed, sums, out, kept, width, num_chunks,
    CUTS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, BUNCH: tl.constexpr,
):  # fmt: skip
    """The token of a row, and 0; or 0, and 1 if its logits are not finite, 2 if all tokens are
    forbidden. Greedy: the first of the largest logits. Otherwise the first token at which the sum
    of weights, in order of id, exceeds the random number times the sum of all."""
    row = tl.program_id(0)
    number = numbers + row * FIELDS
    tops += row * num_chunks
    raw, top = (
        top_of(raw_tops + row * num_chunks, num_chunks, BUNCH),
        top_of(tops, num_chunks, BUNCH),
    )
    is_bad = (raw != raw) | (tl.abs(raw) == float("inf"))
    status = tl.where(is_bad, 1, tl.where(top == float("-inf"), 2, 0))
    token = tl.full([], 0, tl.int32)
    if status == 0:
        if tl.load(number) > 0.0:
            before = tl.full([], 0.0, tl.float64)
            total = tl.full([], 0.0, tl.float64)
            last = tl.full([], 0, tl.int32)
            for chunk in range(0, num_chunks):
                part = tl.load(sums + row * num_chunks + chunk)
                total += part
                last = tl.where(part > 0.0, chunk, last)
            wanted = tl.load(number + 1) * total
            own = tl.full([], 0, tl.int32)
            sum_before = tl.full([], 0.0, tl.float64)
            for chunk in range(0, last):
                sum_before += tl.load(sums + row * num_chunks + chunk)
                is_before = sum_before <= wanted
                own = tl.where(is_before, chunk + 1, own)
                before = tl.where(is_before, sum_before, before)
            found = tl.full([], MANY, tl.int32)
            seen_k = tl.full([], 0, tl.int32)
            seen_p = tl.full([], 0, tl.int32)
            for first in range(own * CHUNK, tl.minimum((own + 1) * CHUNK, width), TILE):
                at, is_in, x = tile_of(logits, width, first, TILE)
                weight, seen_k, seen_p = weights_of(
                    x, is_in, top, number, states + row * (2 * STATE),
                    allowed + row * 2 * num_chunks, own, num_chunks, seen_k, seen_p, CUTS,
                )  # fmt: skip
                is_reached = (weight > 0.0) & (before + tl.cumsum(weight, 0) > wanted)
                found = tl.minimum(found, tl.min(tl.where(is_reached, at, MANY), 0))
                # The last of all, if rounding lets none exceed it.
                token = tl.maximum(token, tl.max(tl.where(weight > 0.0, at, 0), 0))
                before += tl.sum(weight, 0)
            token = tl.where(found < MANY, found, token)
        else:
            found = tl.full([], MANY, tl.int32)
            for first in range(0, num_chunks, BUNCH):
                at = first + tl.arange(0, BUNCH)
                part = tl.load(tops + at, mask=at < num_chunks, other=float("nan"))
                place = tl.load(firsts + row * num_chunks + at, mask=at < num_chunks, other=MANY)
                found = tl.minimum(found, tl.min(tl.where(part == top, place, MANY), 0))
            token = found
    tl.store(out + 2 * row, token)
    tl.store(out + 2 * row + 1, status)
    place = tl.load(number + 5).to(tl.int32)
    tl.store(kept + tl.maximum(place, 0), token, mask=place >= 0)


@triton.jit
def feed(token_ids, places, kept, num_tokens, BLOCK: tl.constexpr):
    """Tokens that an earlier step has chosen take the place of those of the host."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(places + at, mask=at < num_tokens, other=-1)
    token = tl.load(kept + place, mask=place >= 0, other=0)
    tl.store(token_ids + at, token, mask=place >= 0)

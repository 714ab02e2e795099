"""The experts of a token, and the lists of the tokens of each expert.

Row rule: a program computes one row in an array of fixed size. The lists follow from the rows of
the step, but only say where a row is computed.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.0e38)
"""The choice of experts whose groups are not the best: below all others, above none."""


@triton.jit
def _first_largest(values, at, BLOCK: tl.constexpr):
    """The place of the largest number; of equal ones the first."""
    return tl.min(tl.where(values == tl.max(values, 0), at, BLOCK), 0)


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def _softmax(x):
    powers = tl.exp(x - tl.max(x, 0))
    return powers / tl.sum(powers, 0)


@triton.jit
def _of_best_groups(
    choice, at, width, num_groups, top_groups, group_best, BLOCK: tl.constexpr
):  # fmt: skip
    """The choices, LOWEST for experts of other groups."""
    group = at // width
    sums = tl.full([BLOCK], float("-inf"), tl.float32)
    for g in range(0, num_groups):
        left = tl.where(group == g, choice, float("-inf"))
        total = tl.full([], 0.0, tl.float32)
        for _ in range(0, group_best):
            total += tl.max(left, 0)
            left = tl.where(at == _first_largest(left, at, BLOCK), float("-inf"), left)
        sums = tl.where(at == g, total, sums)
    is_best = at < 0
    for _ in range(0, top_groups):
        best = _first_largest(sums, at, BLOCK)
        is_best = is_best | (group == best)
        sums = tl.where(at == best, float("-inf"), sums)
    return tl.where(is_best | (choice == float("-inf")), choice, LOWEST)


@triton.jit
def _mixed_sparsely(x, at, jitter, BLOCK: tl.constexpr):
    weights = tl.zeros([BLOCK], tl.float32)
    left = x
    for _ in range(0, 2):
        best = _first_largest(left, at, BLOCK)
        most = tl.max(left, 0)
        # A quotient of zeros is a NaN, which is not larger than anything.
        distance = (most - x) / tl.maximum(tl.abs(x), most)
        near = tl.where(distance > 2.0 * jitter, float("-inf"), left)
        weights = tl.where(at == best, _softmax(near), weights)
        left = tl.where(at == best, float("-inf"), left)
    return weights


@triton.jit
def route(
    logits, bias, out, num_experts, top_k, score, normalise, has_bias, num_groups, top_groups,
    group_best, floor, scale, jitter, stride_logits, stride_out, BLOCK: tl.constexpr,
):  # fmt: skip
    """`Route` of one row. `score`: 0 softmax, 1 sigmoid, 2 sparsemixer."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    is_expert = at < num_experts
    x = tl.load(logits + row * stride_logits + at, mask=is_expert, other=0.0).to(tl.float32)
    # The difference of an infinity or a NaN with itself is not 0.
    is_bad = tl.max((x - x != 0.0).to(tl.int32), 0) != 0
    x = tl.where(is_expert, tl.where(is_bad, 0.0, x), float("-inf"))
    weights = tl.zeros([BLOCK], tl.float32)
    if score == 2:
        weights = _mixed_sparsely(x, at, jitter, BLOCK)
    else:
        scores = _sigmoid(x)
        if score == 0:
            scores = _softmax(x)
        choice = x
        if has_bias:
            added = tl.load(bias + at, mask=is_expert, other=0.0)
            choice = tl.where(is_expert, scores + added, float("-inf"))
        if top_groups < num_groups:
            width = num_experts // num_groups
            choice = _of_best_groups(choice, at, width, num_groups, top_groups, group_best, BLOCK)
        total = tl.full([], 0.0, tl.float32)
        for _ in range(0, top_k):
            best = _first_largest(choice, at, BLOCK)
            kept = tl.where(at == best, scores, 0.0)
            total += tl.sum(kept, 0)
            weights += kept
            choice = tl.where(at == best, float("-inf"), choice)
        if normalise:
            weights = weights / tl.maximum(total, floor)
        weights = weights * scale
    weights = tl.where(is_bad, tl.where(at < top_k, float("nan"), 0.0), weights)
    target = out + row * stride_out + at
    tl.store(target, weights.to(out.dtype.element_ty), mask=is_expert)


@triton.jit
def choose(routes, chosen, num_experts, top_k, stride_routes, BLOCK: tl.constexpr):
    """The experts of a row in order, top_k of them: those whose weight is not 0, then -1."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    source = routes + row * stride_routes + at
    weights = tl.load(source, mask=at < num_experts, other=0.0).to(tl.float32)
    taken = (weights != 0.0).to(tl.int32)
    place = tl.cumsum(taken, 0) - 1
    tl.store(chosen + row * top_k + place, at, mask=(taken != 0) & (place < top_k))
    tl.store(chosen + row * top_k + at, -1, mask=(at >= tl.sum(taken, 0)) & (at < top_k))


@triton.jit
def assign(chosen, lists, counts, num_rows, num_pairs, BLOCK: tl.constexpr):
    """The list of an expert has the places in `chosen` that name it, in order; `num_rows` is the
    room of a list."""
    expert = tl.program_id(0)
    count = tl.full([], 0, tl.int32)
    for first in range(0, num_pairs, BLOCK):
        at = first + tl.arange(0, BLOCK)
        is_own = tl.load(chosen + at, mask=at < num_pairs, other=-1) == expert
        place = count + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(lists + expert.to(tl.int64) * num_rows + place, at, mask=is_own)
        count += tl.sum(is_own.to(tl.int32), 0)
    tl.store(counts + expert, count)


@triton.jit
def tiles(counts, found, num_experts, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    """Tile j of all experts' rows in order: its expert, or -1, and its first place in the
    expert's list."""
    tile = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    count = tl.load(counts + at, mask=at < num_experts, other=0)
    own = (count + (BLOCK_M - 1)) // BLOCK_M
    ends = tl.cumsum(own, 0)
    expert = tl.sum((ends <= tile).to(tl.int32), 0)
    begin = tl.sum(tl.where(at == expert, ends - own, 0), 0)
    tl.store(found + 2 * tile, tl.where(expert < num_experts, expert, -1))
    tl.store(found + 2 * tile + 1, (tile - begin) * BLOCK_M)

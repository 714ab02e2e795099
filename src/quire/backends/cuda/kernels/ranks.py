"""Values of which each rank has a part, and the tokens of a divided table.

Row rule: numbers are copied, and no sum is divided among ranks.
"""

import triton
import triton.language as tl


@triton.jit
def own_ids(token_ids, out, first, count, num_tokens, BLOCK: tl.constexpr):
    """Rows of a table that has those of the tokens from `first` on: any of them for a token that
    another rank has."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(token_ids + at, mask=at < num_tokens, other=0) - first
    place = tl.minimum(tl.maximum(place, 0), count - 1)
    tl.store(out + at, place, mask=at < num_tokens)


@triton.jit
def unite(
    parts, begins, token_ids, out, width, num_ranks, stride_rank, stride_part, stride_out, by_owner,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row], of whose columns each rank has those from its begin on; or all of them, if the
    row's token is one of those from its begin on (`by_owner`). Rows of a rank's part begin
    `stride_part` numbers after another, and parts `stride_rank`."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = at
    if by_owner:
        key = at * 0 + tl.load(token_ids + row)
    owner, first = at * 0, at * 0
    for rank in range(1, num_ranks):
        begin = tl.load(begins + rank)
        owner += (key >= begin).to(tl.int32)
        first = tl.where(key >= begin, begin, first)
    if by_owner:
        first = at * 0
    source = parts + owner.to(tl.int64) * stride_rank + row.to(tl.int64) * stride_part + at - first
    numbers = tl.load(source, mask=at < width)
    tl.store(out + row.to(tl.int64) * stride_out + at, numbers, mask=at < width)

"""Detects output that ends in a repeated pattern, so that the request can stop.

Called by `Request` if its sampling parameters ask for repetition detection.
"""

from __future__ import annotations

from quire.params import RepetitionDetectionParams


def is_repeating(token_ids: list[int], num_output: int, params: RepetitionDetectionParams) -> bool:
    """Whether the last `num_output` of the tokens end in `min_count` copies of one pattern, of a
    size that `params` allows."""
    if not params.max_pattern_size:
        return False
    longest = min(params.max_pattern_size, num_output // params.min_count)
    for size in range(max(params.min_pattern_size, 1), longest + 1):
        if token_ids[-1] != token_ids[-1 - size]:
            continue
        # Copies of a pattern: each token equals the token `size` places before it.
        span = size * params.min_count
        if token_ids[-span + size :] == token_ids[-span:-size]:
            return True
    return False

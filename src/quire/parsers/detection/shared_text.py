"""Common beginnings and ends of texts."""

from __future__ import annotations


def shared_begin(first: str, *others: str) -> str:
    """The longest common prefix of all texts."""
    for other in others:
        first = first[: _num_equal(first, other)]
    return first


def shared_end(first: str, second: str) -> str:
    """The longest common suffix of both texts."""
    return shared_begin(first[::-1], second[::-1])[::-1]


def _num_equal(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))

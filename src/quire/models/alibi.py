"""Slopes of ALiBi. Source: Press et al. 2021, "Train Short, Test Long", section 3.

If the number of heads is not a power of two, models differ in which slopes of the next power of two
they use, and in which order.
"""

from __future__ import annotations

import math


def bloom_slopes(num_heads: int) -> tuple[float, ...]:
    """Return the slopes of the power of two below, then every second slope of the next power."""
    power: int = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** -(8.0 * index / power) for index in range(1, power + 1)]
    extra = [2.0 ** -(4.0 * index / power) for index in range(1, 2 * (num_heads - power) + 1, 2)]
    return tuple(slopes + extra)


def mpt_slopes(num_heads: int, bias_max: float) -> tuple[float, ...]:
    """Return every second slope of the next power, starting with the second, then the others."""
    power: int = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** -(index * bias_max / power) for index in range(1, power + 1)]
    if power != num_heads:
        slopes = [*slopes[1::2], *slopes[::2]][:num_heads]
    return tuple(slopes)

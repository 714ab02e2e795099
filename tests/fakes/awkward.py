"""Values that no field expects: limits of integers, no numbers, hostile texts, wrong types.

For property tests: whatever takes one of these works, or raises an error of ours that names the
field.
"""

from __future__ import annotations

import decimal
import fractions
import math
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st


class Unprintable:
    """Its `repr` fails."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _doubling(depth: int) -> Any:
    """Small in memory, and of 2**depth values for whoever walks through all of it."""
    value: Any = {}
    for _ in range(depth):
        value = {"a": value, "b": value}
    return value


INTS = [
    -1, 0, 1, 2, 16, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70,
    10**5000, -(2**31), -(2**63), -(2**63) - 1, -(10**5000),
]  # fmt: skip
FLOATS = [1.0, 0.5, -0.5, 1e-320, 1e308, math.nan, math.inf, -math.inf]
TEXTS = [
    "", " ", "a", "auto", "x" * 100_000, "\ud800", "caf\udce9", "a\0b", "\n", "../..", "/",
    "/dev/zero", "/proc/self/mem", "~nobody-at-all/x", "{{ 1 / 0 }}",
]  # fmt: skip
CONTAINERS: list[Any] = [
    [], [[]], {}, {"a": 1}, {1: 2}, {"a": math.nan}, [1], [-1], [2**70], ["a"], [""], ["\ud800"],
    [None], [True], [1.5], ["x" * 100_000], (), ("a",), {1}, range(3), _nested(3000),
    _doubling(100),
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, b"bytes", bytearray(b"x"), 1j, object(), Unprintable(), int, len,
    decimal.Decimal("NaN"), fractions.Fraction(1, 2), fractions.Fraction(10**400),
    Path("/nowhere"), np.int64(3), np.uint64(2**64 - 1), np.float32(0.5), np.array([1, 2]),
    np.array(1), np.array([]),
]  # fmt: skip

EVERY: list[Any] = [*INTS, *FLOATS, *TEXTS, *CONTAINERS, *OTHERS]

MAX_MESSAGE_CHARS = 2000


def awkward() -> st.SearchStrategy[Any]:
    """Any of them, or a random integer, float or text."""
    numbers = st.one_of(st.integers(), st.floats())
    texts = st.text(st.characters(exclude_categories=()), max_size=20)
    return st.one_of(st.sampled_from(EVERY), numbers, texts)


def check_message(error: Exception, *names: str) -> None:
    """The error names the field, at bounded length."""
    message = str(error)
    assert any(name in message for name in names), message[:MAX_MESSAGE_CHARS]
    assert len(message) <= MAX_MESSAGE_CHARS

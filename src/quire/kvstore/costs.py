"""What it takes to load K/V, and to compute it: learnt from what was done."""

from __future__ import annotations

_WEIGHT = 0.2
"""Of the newest observation in a mean."""
_FIRST_BYTES_PER_S = 1e9
"""Assumed of a tier until it was read. What is assumed to be slow is never tried, and loads that
are slow end with their deadline."""
_DOUBT = 0.95
"""What remains of a time when a tier was left alone because of it."""


class _Mean:
    """A mean in which older numbers count less and less."""

    __slots__ = ("value",)

    def __init__(self, value: float | None = None) -> None:
        self.value = value

    def add(self, number: float) -> None:
        self.value = number if self.value is None else self.value + _WEIGHT * (number - self.value)


class ReadCosts:
    """Seconds that a tier takes a thread for each byte, of late, with what other threads read."""

    def __init__(self) -> None:
        self._per_byte_s = _Mean(1 / _FIRST_BYTES_PER_S)

    def observe(self, num_bytes: int, duration_s: float) -> None:
        """A chunk of so many bytes was read and verified."""
        if num_bytes:
            self._per_byte_s.add(duration_s / num_bytes)

    def seconds(self, num_bytes: int) -> float:
        """What so many bytes would take."""
        return num_bytes * (self._per_byte_s.value or 0.0)

    def left_alone(self) -> None:
        """Nothing was read because it would have taken too long. What was slow once need not be so
        for ever: after some times it is tried again."""
        self._per_byte_s.value = (self._per_byte_s.value or 0.0) * _DOUBT


class ComputeCosts:
    """Seconds that a token of a prompt takes to compute; None until one was."""

    _FEWEST = 16
    """Steps with fewer tokens tell nothing of prompts."""

    def __init__(self) -> None:
        self._per_token_s = _Mean()

    def observe(self, num_tokens: int, duration_s: float) -> None:
        """A step computed so many tokens."""
        if num_tokens >= self._FEWEST:
            self._per_token_s.add(duration_s / num_tokens)

    def seconds(self, num_tokens: int) -> float | None:
        """What so many tokens would take."""
        per_token_s = self._per_token_s.value
        return None if per_token_s is None else num_tokens * per_token_s

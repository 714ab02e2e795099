"""Limits the bytes of a request other than its body."""

from __future__ import annotations


class FramingBudget:
    """One limit for request line, headers, trailers, chunk extensions and chunk framing.

    The parser gives no offsets, so bytes are charged per piece that is fed to it: all its bytes
    that are not body. The shortest form of a chunk's framing counts as body; otherwise a long body
    in small chunks would exceed the limit.
    """

    __slots__ = ("_limit", "_num_body_bytes", "_num_spent")

    def __init__(self, limit: int) -> None:
        """`limit` in bytes, for each request."""
        self._limit = limit
        self._num_spent = 0
        self._num_body_bytes = 0

    def add_body(self, num_bytes: int) -> None:
        """`num_bytes` of the current piece are a chunk of the body."""
        num_hex_digits = (num_bytes.bit_length() + 3) // 4
        self._num_body_bytes += num_bytes + num_hex_digits + 4  # a CR LF after length and chunk

    def charge(self, num_bytes: int) -> bool:
        """Charges a piece of `num_bytes` that was fed. Returns whether the limit still holds."""
        self._num_spent += max(0, num_bytes - self._num_body_bytes)
        self._num_body_bytes = 0
        return self._num_spent <= self._limit

    def restart(self) -> None:
        """A request has ended. Bytes after it in the same piece are not charged."""
        self._num_spent = 0
        self._num_body_bytes = 0

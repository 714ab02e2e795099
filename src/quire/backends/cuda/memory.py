"""`Memory` and `Buffer`: pieces of the device's memory, by size and place. They hold none
themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.errors import BackendError

ALIGNMENT = 256
"""Bytes; every part of a memory begins at a multiple of it."""


def aligned(num_bytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False, slots=True)
class Memory:
    """A piece of the device's memory, which has an address only while it is held."""

    num_bytes: int = 0
    handle: Any = None
    """The device's own record of it; None while it is not held."""

    def add(self, num_bytes: int) -> Buffer:
        """A new part at the end, before the memory is held."""
        if self.handle is not None:
            raise BackendError("memory that the device holds cannot grow")
        begin = self.num_bytes
        self.num_bytes += aligned(num_bytes)
        return Buffer(self, begin, num_bytes)

    def part(self, begin: int, num_bytes: int) -> Buffer:
        """Some of its bytes."""
        return Buffer(self, begin, num_bytes)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Some bytes of a memory."""

    memory: Memory
    begin: int
    num_bytes: int

    def from_byte(self, begin: int, num_bytes: int | None = None) -> Buffer:
        """The bytes from `begin` on; all that follow, if no number is given."""
        rest = self.num_bytes - begin
        count = rest if num_bytes is None else num_bytes
        if begin < 0 or not 0 <= count <= rest:
            raise BackendError(f"bytes {begin} to {begin + count} are not in {self.num_bytes}")
        return Buffer(self.memory, self.begin + begin, count)

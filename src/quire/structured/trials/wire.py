"""What `process` and the process that it starts say to each other: length and msgpack."""

from __future__ import annotations

import msgspec

from quire.units import GiB, MiB

MAX_MEMORY_BYTES = 2 * GiB
"""Of address space."""
MAX_STACK_BYTES = 16 * MiB
"""Definitions that refer to each other in a row need it, 10 KiB each or so. The threads that
compile what passes have more."""
LENGTH_BYTES = 4
"""Of a message, big-endian, before it."""


class TrialVocabulary(msgspec.Struct, frozen=True):
    """The arguments of `byte_vocabulary`."""

    added: tuple[str, ...]
    special: tuple[str, ...]
    vocab_size: int | None


class TrialJob(msgspec.Struct):
    """A grammar to be compiled."""

    vocabulary: TrialVocabulary
    grammar: str


class TrialOutcome(msgspec.Struct):
    """What came of it."""

    message: str
    """The library's; empty if the grammar works."""
    is_last: bool = False
    """Whether the process ends now."""

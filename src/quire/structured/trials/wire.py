"""The messages between `process` and its children. A reply's payload is the library's error."""

from __future__ import annotations

import msgspec

from quire.units import GiB, MiB

OUTCOME = b"O"
"""The kind of all replies."""
MAX_MEMORY_BYTES = 2 * GiB
"""Most address space of a child."""
MAX_STACK_BYTES = 16 * MiB
"""A chain of definitions that refer to each other needs about 10 KiB of stack for each. The threads
that compile accepted grammars have larger stacks."""


class TrialVocabulary(msgspec.Struct, frozen=True):
    """The arguments of `byte_vocabulary`."""

    added: tuple[str, ...]
    special: tuple[str, ...]
    vocab_size: int | None


class TrialJob(msgspec.Struct):
    """A grammar to be compiled."""

    vocabulary: TrialVocabulary
    grammar: str

"""`SourceOps`: the native ops of a model with an encoder, for source rows and for other tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.backends.cpu.lowering import num_source_ops
from quire.backends.cpu.lowering.ops.exchange import NativePass

if TYPE_CHECKING:
    from quire.backends.cpu.encode import Encoded
    from quire.backends.cpu.library import Library
    from quire.backends.cpu.lowering import NativeOp
    from quire.program import Program


@dataclass(frozen=True, slots=True)
class SomeOps:
    """Ops that steps may compute."""

    records: Any
    """The first record."""
    count: int


@dataclass(frozen=True, slots=True)
class SourceOps:
    """The parts of a program that `SourcesEnd` divides. Each exists without the ops that give rows
    to the caller, too, because a call for each of them takes time."""

    num_sources: int
    """Source rows of a request."""
    sources: tuple[SomeOps, SomeOps]
    """Without and with rows for the caller."""
    tokens: tuple[SomeOps, SomeOps]
    timed: tuple[NativeOp, ...]
    """The ops of `tokens` that give no rows."""

    @classmethod
    def of(
        cls, library: Library, program: Program, ops: tuple[NativeOp, ...], encoded: Encoded
    ) -> SourceOps | None:
        """None: the model has a decoder alone."""
        if not program.num_sources:
            return None
        begin = num_source_ops(program)

        def part(indices: range) -> tuple[SomeOps, SomeOps]:
            plain = [index for index in indices if not isinstance(ops[index], NativePass)]
            return _some(library, encoded, plain), _some(library, encoded, indices)

        tokens = range(begin, len(ops))
        timed = tuple(ops[index] for index in tokens if not isinstance(ops[index], NativePass))
        return cls(program.num_sources, part(range(begin)), part(tokens), timed)

    def of_sources(self, *, gives_rows: bool) -> SomeOps:
        """The ops for source rows."""
        return self.sources[gives_rows]

    def of_tokens(self, *, gives_rows: bool) -> SomeOps:
        """The ops for other tokens."""
        return self.tokens[gives_rows]


def _some(library: Library, encoded: Encoded, indices: Sequence[int]) -> SomeOps:
    records = library.ffi.new("quire_op[]", len(indices))
    for place, index in enumerate(indices):
        records[place] = encoded.records[index]
    return SomeOps(records, len(indices))

"""Values of which each rank has a part: all parts are exchanged, and put together on each rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.backends.cuda.kernel import (
    ITEM_BYTES,
    TYPE_NAMES,
    Action,
    Arguments,
    Exchange,
    Kernel,
    Launch,
    both,
)
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.lowering.pointwise import combine_args, combine_kernel
from quire.backends.cuda.memory import Buffer
from quire.backends.cuda.step import Step
from quire.errors import BackendError
from quire.program import Gather, Split

_BLOCK = 512
_UNIT = 16
"""Bytes; each part begins at a multiple of it."""


def own_ids_kernel() -> Kernel:
    """Tokens as rows of a rank's part of a table."""
    types = (
        ("token_ids", "*i32"), ("out", "*i32"), ("first", "i32"), ("count", "i32"),
        ("num_tokens", "i32"),
    )  # fmt: skip
    return Kernel("ranks", "own_ids", types, (("BLOCK", _BLOCK),))


def unite_kernel(dtype: str) -> Kernel:
    """Parts of numbers of one type, put together."""
    types = (
        ("parts", f"*{dtype}"), ("begins", "*i32"), ("token_ids", "*i32"), ("out", f"*{dtype}"),
        ("width", "i32"), ("num_ranks", "i32"), ("stride_rank", "i32"), ("stride_part", "i32"),
        ("stride_out", "i32"), ("by_owner", "i32"),
    )  # fmt: skip
    return Kernel("ranks", "unite", types, (("BLOCK", _BLOCK),))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    yield own_ids_kernel()
    yield from both(map(unite_kernel, TYPE_NAMES.values()))


class Union:
    """Brings a value together, of which each rank has some columns, or the rows of some tokens."""

    def __init__(
        self, split: Split, width: int, type_name: str, lowering: Lowering, most_rows: int,
        *, by_owner: bool = False,
    ) -> None:  # fmt: skip
        """`width`: of the whole value."""
        self._lowering, self._split, self._width = lowering, split, width
        self._type, self._by_owner = type_name, by_owner
        self._stride = width if by_owner else max(count for _, count in split.spans)
        begins = np.array([first for first, _ in split.spans], np.int32)
        self._begins = lowering.numbers(begins)
        self._parts = lowering.parts(len(split.spans) * self._part_bytes(most_rows))

    def _part_bytes(self, num_rows: int) -> int:
        num_bytes = num_rows * self._stride * ITEM_BYTES[self._type]
        return -(-num_bytes // _UNIT) * _UNIT

    def own(self, num_rows: int) -> Rows:
        """The place of this rank's part, of so many rows, before it is exchanged."""
        size, rank = self._part_bytes(num_rows), self._split.rank
        width = self._width if self._by_owner else self._split.own[1]
        place = self._parts().from_byte(rank * size, size)
        return Rows(place, self._stride, width, self._type)

    def emit(self, step: Step, out: Rows, num_rows: int) -> Iterator[Action]:
        """Exchanges the parts, and puts them together."""
        if not num_rows:
            return
        ranks = self._lowering.ranks
        if ranks is None:
            raise BackendError("a program that was split among ranks needs the other ranks")
        own, num_ranks = self.own(num_rows).buffer, len(self._split.spans)
        parts = self._parts().from_byte(0, num_ranks * own.num_bytes)
        yield Exchange(ranks, own, parts)
        args: Arguments = {
            "parts": parts, "begins": self._begins, "token_ids": step.buffers["token_ids"],
            "out": out.buffer, "width": self._width, "num_ranks": num_ranks,
            "stride_rank": own.num_bytes // out.item, "stride_part": self._stride,
            "stride_out": out.stride, "by_owner": int(self._by_owner),
        }  # fmt: skip
        grid = (num_rows, -(-self._width // _BLOCK))
        yield Launch(unite_kernel(self._type).fitted(args), grid, args)


def lower_gather(op: Gather, lowering: Lowering) -> Emit:
    """The part of this rank is copied to where it is exchanged."""
    x, out = lowering.rows[op.x], lowering.rows[op.out]
    most, by_owner = lowering.options.max_num_tokens, op.by == "owner"
    union = Union(op.split, out.width, x.type_name, lowering, most, by_owner=by_owner)

    def emit(step: Step) -> Iterator[Action]:
        num_rows = lowering.num_rows(op.x, step)
        if not num_rows:
            return
        own = union.own(num_rows)
        args = combine_args(x, own, step.buffers["positions"])
        kernel = combine_kernel(x.type_name, x.type_name, "copy").fitted(args)
        yield Launch(kernel, (num_rows, -(-own.width // _BLOCK)), args)
        yield from union.emit(step, out, num_rows)

    return emit


def own_tokens(split: Split, step: Step, out: Buffer) -> Launch:
    """Puts the rows that a rank's part of a table has for the step's tokens into `out`."""
    first, count = split.own
    args: Arguments = {
        "token_ids": step.buffers["token_ids"], "out": out, "first": first, "count": count,
        "num_tokens": step.num_tokens,
    }  # fmt: skip
    return Launch(own_ids_kernel(), (-(-step.num_tokens // _BLOCK),), args)

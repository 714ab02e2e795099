"""The results of a program: logits or vectors, in pieces of some rows.

A step may want the logits of all of its tokens, which would be gigabytes. So they are computed, and
leave the device, in pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from quire.backends.cuda.kernel import Action, Kernel, Launch, both
from quire.backends.cuda.lowering.adapters import Changes
from quire.backends.cuda.lowering.context import Lowering, Rows
from quire.backends.cuda.lowering.pointwise import combine_args, combine_kernel
from quire.backends.cuda.lowering.products import product_of
from quire.backends.cuda.lowering.ranks import Union
from quire.backends.cuda.lowering.sampling import Sampler
from quire.backends.cuda.step import Step
from quire.program import Logits, Vectors

PIECE = 256
"""Rows of a piece."""
_BLOCK = 512


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for op in ("scale", "softcap", "add"):
        yield from both([combine_kernel("fp32", "fp32", op)])


class Result(ABC):
    """The last op of a program."""

    rows: Rows
    """The place of a piece."""
    sampler: Sampler | None = None
    """Chooses tokens from a piece; None: the results are vectors."""

    @abstractmethod
    def emit(self, step: Step, first: int, count: int) -> Iterator[Action]:
        """Computes rows of the result, from one on."""


class LogitsResult(Result):
    """Float32 products, with a scale and a soft cap."""

    def __init__(self, op: Logits, lowering: Lowering) -> None:
        width, own_width = op.out.dim, op.weight.shape[0]
        most = min(PIECE, lowering.options.max_num_tokens)
        self._x = lowering.rows[op.x]
        self.rows = Rows(lowering.values.add(4 * most * width), width, width, "fp32")
        self._union: Union | None = None
        if op.columns is not None:
            self._union = Union(op.columns, width, "fp32", lowering, most)
        self._product = product_of(op.weight, None, lowering, most_rows=most)
        self.sampler = Sampler(self.rows, most, lowering, op.columns)
        self._changes = Changes(op.weight, None, lowering, most, is_taken=True)
        self._op = op
        bias = op.bias
        self._bias = None if bias is None else Rows(lowering.weight(bias), 0, own_width, "fp32")

    def emit(self, step: Step, first: int, count: int) -> Iterator[Action]:
        """The product, and what follows it in place."""
        x, rows = self._x.from_row(first), self.rows
        if self._union is not None:
            rows = self._union.own(count)
        yield from self._product.emit(x, rows, count)
        yield from self._changes.emit(step, x, rows, first, count)
        if self._op.scale != 1.0:
            yield _changed(step, rows, count, "scale", a=self._op.scale)
        if self._bias is not None:
            yield _changed(step, rows, count, "add", self._bias)
        if self._op.softcap is not None:
            yield _changed(step, rows, count, "softcap", a=self._op.softcap)
        if self._union is not None:
            yield from self._union.emit(step, self.rows, count)


def _changed(
    step: Step, rows: Rows, count: int, name: str, second: Rows | None = None, **numbers: float
) -> Launch:
    args = combine_args(rows, rows, step.buffers["positions"], second, **numbers)
    grid = (count, -(-rows.width // _BLOCK))
    return Launch(combine_kernel("fp32", "fp32", name).fitted(args), grid, args)


class VectorsResult(Result):
    """The rows as they are."""

    def __init__(self, op: Vectors, lowering: Lowering) -> None:
        self._x = self.rows = lowering.rows[op.x]

    def emit(self, step: Step, first: int, count: int) -> Iterator[Action]:
        """Nothing is left to compute."""
        del step, count
        self.rows = self._x.from_row(first)
        yield from ()


def lower_result(lowering: Lowering) -> Result:
    """The program's last op. Raises BackendError for one that has no kernel."""
    op = lowering.program.result
    if isinstance(op, Logits):
        return LogitsResult(op, lowering)
    if isinstance(op, Vectors):
        return VectorsResult(op, lowering)
    return lowering.refuse(f"op {type(op).__name__}")

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
        if op.columns is not None:
            lowering.refuse("logits that are divided among ranks")
        width = op.weight.shape[0]
        most = min(PIECE, lowering.options.max_num_tokens)
        self._x = lowering.rows[op.x]
        self.rows = Rows(lowering.values.add(4 * most * width), width, width, "fp32")
        self._product = product_of(op.weight, None, lowering, most_rows=most)
        self.sampler = Sampler(self.rows, most, lowering)
        self._changes = Changes(op.weight, None, lowering, most, is_taken=True)
        self._op, self._lowering = op, lowering
        self._bias = None if op.bias is None else Rows(lowering.weight(op.bias), 0, width, "fp32")

    def emit(self, step: Step, first: int, count: int) -> Iterator[Action]:
        """The product, and what follows it in place."""
        x = self._x.from_row(first)
        yield from self._product.emit(x, self.rows, count)
        yield from self._changes.emit(step, x, self.rows, first, count)
        if self._op.scale != 1.0:
            yield self._changed(step, count, "scale", a=self._op.scale)
        if self._bias is not None:
            yield self._changed(step, count, "add", self._bias)
        if self._op.softcap is not None:
            yield self._changed(step, count, "softcap", a=self._op.softcap)

    def _changed(
        self, step: Step, count: int, name: str, second: Rows | None = None, **numbers: float
    ) -> Launch:
        args = combine_args(self.rows, self.rows, step.buffers["positions"], second, **numbers)
        grid = (count, -(-self.rows.width // _BLOCK))
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

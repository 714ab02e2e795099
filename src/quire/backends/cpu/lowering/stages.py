"""`Pieces`: how the step of an encoder is divided, so that other work can run in between.

In an encoder a token attends to all tokens of its request. So attention needs K and V of all rows,
and nothing else needs another row. A stage begins with an attention op and ends before the next
one: its ops run for some rows, then for the next ones, and the next stage begins when all rows are
done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.backends.cpu.lowering.native_op import NativeOp
from quire.backends.cpu.lowering.ops.attention import NativeAttention
from quire.backends.cpu.lowering.ops.kernels import NativeMean
from quire.backends.cpu.lowering.ops.results import NativeVectors


@dataclass(frozen=True, slots=True)
class Pieces:
    """The division of a step into stages and pieces."""

    stages: tuple[range, ...]
    """Indices of ops. Each stage but the first begins with an attention op."""
    spans: tuple[bool, ...]
    """By stage, whether its attention sees spans alone."""
    max_rows: int
    """The most rows of a piece."""

    def step_slots(self) -> tuple[int, ...]:
        """By op, the slot of its K and V in a block. A stage reads those of its own attention while
        it writes those of the next one."""
        slots = list[int]()
        for number, stage in enumerate(self.stages):
            begins_with_attention = number > 0
            slots += [(number - 1) % 2] * begins_with_attention
            slots += [number % 2] * (len(stage) - begins_with_attention)
        return tuple(slots)


def pieces_of(ops: Sequence[NativeOp], max_rows: int) -> Pieces | None:
    """The division of steps into pieces of at most `max_rows` rows; None: there is no limit, or the
    ops are not those of an encoder whose rows are given back."""
    is_encoder = isinstance(ops[-1], NativeVectors)
    if not max_rows or not is_encoder or any(isinstance(op, NativeMean) for op in ops):
        return None
    attention = {at: one for at, one in enumerate(ops) if isinstance(one, NativeAttention)}
    if not all(map(_needs_no_positions, attention.values())):
        return None
    begins, ends = [0, *attention], [*attention, len(ops)]
    return Pieces(
        tuple(range(begin, end) for begin, end in zip(begins, ends, strict=True)),
        (False, *(op.spans for op in attention.values())),
        max_rows,
    )


def _needs_no_positions(op: NativeAttention) -> bool:
    """Whether attention of an encoder gives a row the same result at any position."""
    return (
        op.kv is None
        and op.is_bidirectional
        and op.window is None
        and op.alibi is None
        and op.relative is None
    )

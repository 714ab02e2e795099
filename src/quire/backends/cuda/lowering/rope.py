"""Rotary embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.backends.cuda.kernel import TYPE_NAMES, Arguments, Kernel, Launch
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.step import Integers, StepArray
from quire.program import MAX_AXES, Rope

_BLOCK = 64


def rope_kernel(dtype: str) -> Kernel:
    """The rotation of numbers of one type."""
    types = (
        ("x", f"*{dtype}"), ("positions", "*i32"), ("axes", "*i32"), ("cosines", "*fp32"),
        ("sines", "*fp32"), ("out", f"*{dtype}"), ("half", "i32"), ("head_dim", "i32"),
        ("num_axes", "i32"), ("pair_step", "i32"), ("pair_distance", "i32"), ("stride_x", "i32"),
        ("stride_out", "i32"),
    )  # fmt: skip
    return Kernel("rope", "rope", types, (("BLOCK", _BLOCK),), num_warps=1)


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    yield from map(rope_kernel, TYPE_NAMES.values())


def lower_rope(op: Rope, lowering: Lowering) -> Emit:
    """Angles are float32 products, as in the reference; their cosines and sines are exact. The
    tables have all positions, because a GPU computes them inexactly."""
    x, out, half = lowering.rows[op.x], lowering.rows[op.out], len(op.inv_freq)
    table = _Table(op.inv_freq, op.scale, lowering.options.max_model_len)
    cosines = lowering.constant((table, "cos"), table.num_bytes, lambda: table.numbers(np.cos))
    sines = lowering.constant((table, "sin"), table.num_bytes, lambda: table.numbers(np.sin))
    axes = lowering.numbers(np.array(op.axes or [0] * half, np.int32))
    num_axes = max(op.axes, default=0) + 1
    name = ("rope positions", num_axes) if op.axes else "positions"
    most = MAX_AXES * lowering.options.max_num_tokens
    lowering.arrays.add(name, StepArray(lambda batch: _axis_positions(batch, num_axes), most))
    kernel, heads = rope_kernel(x.type_name), op.num_heads
    args: Arguments = {
        "x": x.buffer, "axes": axes, "cosines": cosines, "sines": sines, "out": out.buffer,
        "half": half, "head_dim": op.head_dim, "num_axes": num_axes,
        "pair_step": 2 if op.interleaved else 1, "pair_distance": 1 if op.interleaved else half,
        "stride_x": x.stride, "stride_out": out.stride,
    }  # fmt: skip
    return lambda step: [
        Launch(kernel, (step.num_tokens, heads), {**args, "positions": step.buffers[name]})
    ]


@dataclass(frozen=True, slots=True)
class _Table:
    """Numbers of all positions: [max_model_len, frequencies]."""

    inv_freq: tuple[float, ...]
    scale: float
    max_model_len: int

    @property
    def num_bytes(self) -> int:
        return 4 * self.max_model_len * len(self.inv_freq)

    def numbers(self, function: np.ufunc) -> NDArray[np.float32]:
        positions = np.arange(self.max_model_len, dtype=np.float32)[:, None]
        angles = (positions * np.array(self.inv_freq, np.float32)).astype(np.float64)
        numbers: NDArray[np.float32] = (function(angles) * self.scale).astype(np.float32)
        return numbers


def _axis_positions(batch: StepBatch, num_axes: int) -> Integers:
    """[T, num_axes]; the tokens' positions where the step has no others."""
    if batch.axis_positions is None:
        return np.repeat(batch.positions[:, None], num_axes, axis=1)
    return batch.axis_positions[:, :num_axes]

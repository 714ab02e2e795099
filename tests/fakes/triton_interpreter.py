"""`InterpretedDevice`: the emulated device, with Triton's interpreter in place of the twins.

So the kernels themselves compute, on NumPy memory and without a GPU. Three things of the
interpreter are repaired: it multiplies the bit patterns of bfloat16 numbers, cuts bits off where a
float32 becomes bfloat16, and lets BLAS choose the order of a product's sums. And it looks through
Triton's language for what it has to replace at each call of a function, where once is enough.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from collections.abc import Mapping
from importlib import import_module
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter

from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.kernel import Kernel
from quire.backends.kv_formats import narrow_to_bfloat16, widen_bfloat16

TYPES = {
    "fp32": tl.float32, "bf16": tl.bfloat16, "i32": tl.int32, "i64": tl.int64, "i8": tl.int8,
    "u8": tl.uint8, "fp64": tl.float64,
}  # fmt: skip
Handle = interpreter.TensorHandle
_cast = interpreter.InterpreterBuilder.cast_impl
_patch = interpreter._patch_lang
_LANGUAGE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
"""A function that refers to all that may have to be replaced."""


def _repaired_cast(self: Any, source: Any, target: Any) -> Any:
    """Rounds to nearest, ties to even, as a GPU does."""
    kinds = (source.dtype.scalar, target.scalar)
    if kinds == (tl.float32, tl.bfloat16):
        return Handle(narrow_to_bfloat16(source.data), tl.bfloat16)
    if kinds == (tl.bfloat16, tl.float32):
        return Handle(widen_bfloat16(source.data), tl.float32)
    return _cast(self, source, target)


def _numbers(handle: Any) -> NDArray[np.float32]:
    is_narrow = handle.dtype.scalar == tl.bfloat16
    numbers = widen_bfloat16(handle.data) if is_narrow else handle.data
    return np.asarray(numbers, np.float32)


def _repaired_dot(_builder: Any, a: Any, b: Any, d: Any, *_precision: Any) -> Any:
    """Adds the products along K one after the other, so that no sum follows the shape of a tile.
    Whole numbers have exact sums."""
    if a.data.dtype.kind in "iu" and a.dtype.scalar != tl.bfloat16:
        total = np.matmul(a.data.astype(np.int64), b.data.astype(np.int64)) + d.data
        return Handle(total.astype(d.data.dtype), d.dtype.scalar)
    x, y = _numbers(a), _numbers(b)
    total = d.data.copy()
    for k in range(x.shape[-1]):
        total += x[..., :, k, None] * y[..., k, None, :]
    return Handle(total, d.dtype.scalar)


interpreter.InterpreterBuilder.cast_impl = _repaired_cast
interpreter.InterpreterBuilder.create_dot = _repaired_dot
interpreter._patch_lang = lambda _function: None  # calls within a kernel, which has done it


class InterpretedDevice(EmulatedDevice):
    """Runs the programs of a launch one after the other."""

    def _call(self, kernel: Kernel, grid: tuple[int, ...], args: Mapping[str, Any]) -> None:
        module = import_module(f"quire.backends.cuda.kernels.{kernel.module}")
        function = getattr(module, kernel.name).rewrite()
        values = {name: _value(args[name], kind) for name, kind in kernel.types}
        values |= dict(kernel.constants)
        scope = _patch(_LANGUAGE)
        sizes = (*grid, 1, 1)[:3]
        try:
            interpreter.interpreter_builder.set_grid_dim(*sizes)
            for place in product(*map(range, sizes)):
                interpreter.interpreter_builder.set_grid_idx(*place)
                function(**values)
        finally:
            scope.restore()


def _value(value: Any, kind: str) -> Any:
    """An argument as the interpreter's kernels see it."""
    if kind.startswith("*"):
        pointer = tl.pointer_type(TYPES[kind[1:]])
        return tl.tensor(Handle(np.array([value.ctypes.data], np.uint64), pointer), pointer)
    return tl.tensor(Handle(np.array([value]), TYPES[kind]), TYPES[kind])

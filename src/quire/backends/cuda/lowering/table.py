"""The function that lowers each kind of op, and the modules that have kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from quire.backends.cuda.kernel import Kernel
from quire.backends.cuda.lowering import (
    attention,
    coded,
    linear,
    lookup,
    norm,
    pointwise,
    products,
    results,
    rope,
)
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.lowering.results import Result, lower_result
from quire.program import (
    Act,
    Add,
    Attention,
    Clamp,
    Columns,
    Embed,
    Glu,
    HeadNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    Op,
    PositionScale,
    RmsNorm,
    Rope,
    RowScale,
    Scale,
    SigmoidGate,
    SoftCap,
    TakeRows,
    Weigh,
)

LOWERINGS: Mapping[type[Op], Callable[[Any, Lowering], Emit]] = {
    Act: pointwise.lower_act,
    Add: pointwise.lower_add,
    Attention: attention.lower_attention,
    Clamp: pointwise.lower_clamp,
    Columns: pointwise.lower_columns,
    Embed: lookup.lower_embed,
    Glu: pointwise.lower_glu,
    HeadNorm: norm.lower_head_norm,
    LayerNorm: norm.lower_layer_norm,
    LearnedPositions: lookup.lower_learned_positions,
    Linear: products.lower_linear,
    PositionScale: pointwise.lower_position_scale,
    RmsNorm: norm.lower_rms_norm,
    Rope: rope.lower_rope,
    RowScale: pointwise.lower_row_scale,
    Scale: pointwise.lower_scale,
    SigmoidGate: pointwise.lower_sigmoid_gate,
    SoftCap: pointwise.lower_soft_cap,
    TakeRows: lookup.lower_take_rows,
    Weigh: pointwise.lower_weigh,
}

MODULES: tuple[ModuleType, ...] = (
    attention, coded, linear, lookup, norm, pointwise, results, rope
)  # fmt: skip
"""Modules with a function `variants`."""


def all_kernels() -> Iterator[Kernel]:
    """Every kernel that may be launched, each once: what is compiled when a wheel is built."""
    yield from dict.fromkeys(kernel for module in MODULES for kernel in module.variants())


def lower(lowering: Lowering) -> tuple[list[tuple[Op, Emit]], Result]:
    """The ops of the program but the last, with their launches, and the last. Raises BackendError
    for an op without an entry."""
    ops: list[tuple[Op, Emit]] = []
    for op in lowering.program.ops[:-1]:
        function = LOWERINGS.get(type(op))
        if function is None:
            lowering.refuse(f"op {type(op).__name__}")
        ops.append((op, function(op, lowering)))
    result = lower_result(lowering)
    lowering.finish()
    return ops, result

"""`Expanded`: storage format of a quantised checkpoint whose matrices are read as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal[
    "awq", "gptq", "pack-quantized", "int-quantized", "fp8", "nvfp4", "nvfp4-pack", "mxfp4-parts",
    "mxfp4-pack", "bitsandbytes", "hqq", "torchao",
]  # fmt: skip
"""The tensor layout of a matrix; `weights/quantised/layouts.py` reads it."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """Storage format of weights that are expanded to plain numbers."""

    method: str
    """`quant_method` of the checkpoint."""
    layout: Layout
    what: str
    """Description for users."""
    bits: int = 4
    """Bits of a code, if the tensors do not show them."""
    block: tuple[int, int] | None = None
    """Rows and columns per FP8 scale; None: one scale per row or per matrix."""
    zero_offset: int = 0
    """Offset added to a stored zero: 1 in GPTQ's first format."""
    group: int | None = None
    """Group size of HQQ if the tensors do not show it; None: a row."""
    axis: int = 1
    """Axis of HQQ's groups."""
    is_float: bool = False
    """Whether torchao's codes represent floats."""
    others: tuple[Expanded, ...] = ()
    """Further layouts of a checkpoint with several. A matrix has the first layout that matches its
    tensors."""

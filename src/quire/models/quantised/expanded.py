"""`Expanded`: how the matrices of a quantised checkpoint are stored, and read as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal[
    "awq", "gptq", "pack-quantized", "int-quantized", "fp8", "nvfp4", "nvfp4-pack", "mxfp4-parts",
    "mxfp4-pack", "bitsandbytes", "hqq", "torchao",
]  # fmt: skip
"""In which tensors a matrix is stored; `weights/quantised/layouts` reads them."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """How the weights are stored that become plain numbers."""

    method: str
    """`quant_method` of the checkpoint."""
    layout: Layout
    what: str
    """In words, for people."""
    bits: int = 4
    """Bits of a code, where the tensors do not show them."""
    block: tuple[int, int] | None = None
    """Rows and columns of FP8 that have one scale; None: a row or all have one."""
    zero_offset: int = 0
    """What is added to a stored zero: 1 in GPTQ's first format."""
    group: int | None = None
    """Numbers that have one scale in HQQ, where the tensors do not show it; None: a row."""
    axis: int = 1
    """Along which HQQ's groups are."""
    is_float: bool = False
    """Whether torchao's codes stand for floats."""
    others: tuple[Expanded, ...] = ()
    """Further layouts of a checkpoint that has several: a matrix is of the first one that its
    tensors are of."""

"""`block_values`: converts blocks of any GGUF type to float32.

A backend that supports a type reads the blocks themselves instead (`GgufStore.stored`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.weights.gguf import grid_blocks, k_blocks, plain_blocks
from quire.weights.gguf.plain_blocks import Bytes, Floats

_CHUNK_BYTES = 1 << 18
"""Bytes of blocks converted at a time, so that intermediate results stay in the caches."""


def _f64(blocks: Bytes) -> Floats:
    with np.errstate(over="ignore"):
        return blocks.view(np.float64).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    found: Floats = (blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return found


_VALUES: dict[str, Callable[[Bytes], Floats]] = {
    "F64": _f64,
    "F32": lambda blocks: blocks.view(np.float32),
    "F16": lambda blocks: blocks.view(np.float16).astype(np.float32),
    "BF16": _bf16,
    "Q4_0": plain_blocks.q4_0,
    "Q4_1": plain_blocks.q4_1,
    "Q5_0": plain_blocks.q5_0,
    "Q5_1": plain_blocks.q5_1,
    "Q8_0": plain_blocks.q8_0,
    "IQ4_NL": plain_blocks.iq4_nl,
    "MXFP4": plain_blocks.mxfp4,
    "NVFP4": plain_blocks.nvfp4,
    "Q2_K": k_blocks.q2_k,
    "Q3_K": k_blocks.q3_k,
    "Q4_K": k_blocks.q4_k,
    "Q5_K": k_blocks.q5_k,
    "Q6_K": k_blocks.q6_k,
    "IQ4_XS": k_blocks.iq4_xs,
    "TQ1_0": k_blocks.tq1_0,
    "TQ2_0": k_blocks.tq2_0,
    "IQ1_S": grid_blocks.iq1_s,
    "IQ1_M": grid_blocks.iq1_m,
    "IQ2_XXS": grid_blocks.iq2_xxs,
    "IQ2_XS": grid_blocks.iq2_xs,
    "IQ2_S": grid_blocks.iq2_s,
    "IQ3_XXS": grid_blocks.iq3_xxs,
    "IQ3_S": grid_blocks.iq3_s,
}

READABLE = frozenset(_VALUES)
"""Names of the types that `block_values` supports."""


def block_values(type_name: str, blocks: Bytes) -> Floats:
    """Convert blocks [n, bytes of a block] to float32 [n, numbers of a block].

    The bits are those of gguf-py's `dequantize`. A scale that is NaN gives NaN values without an
    error; packing the weights reports them.
    """
    values = _VALUES[type_name]
    step = max(1, _CHUNK_BYTES // max(1, blocks.shape[1]))
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        if len(blocks) <= step:
            return values(np.ascontiguousarray(blocks))
        first = values(np.ascontiguousarray(blocks[:step]))
        found = np.empty((len(blocks), first.shape[1]), np.float32)
        found[:step] = first
        for begin in range(step, len(blocks), step):
            found[begin : begin + step] = values(np.ascontiguousarray(blocks[begin : begin + step]))
    return found

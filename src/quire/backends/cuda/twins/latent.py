"""The twin of `kernels/latent.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.attention import attend
from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, rows_of, widened

Integers = NDArray[np.int32]


def attend_latent(
    grid: Grid, q: Numbers, latent: Numbers, rotary: Numbers, latent_scales: Floats,
    rotary_scales: Floats, out: Numbers, parts: Floats, tables: Integers, visible: Integers,
    query_blocks: Integers, scale: float, num_tokens: int, group: int, latent_dim: int,
    rotary_dim: int, page: int, table_width: int, stride_block: int, stride_latent: int,
    stride_rotary: int, scales_block: int, stride_q: int, stride_out: int, num_chunks: int,
    BLOCK_M: int, CHUNK: int, SPLIT: int, SCALED: int, FLOATS: int, **_tile: int,
) -> None:  # fmt: skip
    """Attention over rows of K that are joined first."""
    sides = [
        _rows(numbers, stride_block, page, stride)
        for numbers, stride in ((latent, stride_latent), (rotary, stride_rotary))
    ]
    if SCALED:
        scales = (_rows(one, scales_block, page, 1) for one in (latent_scales, rotary_scales))
        sides = [widened(side, FLOATS) * own for side, own in zip(sides, scales, strict=True)]
    count = min(map(len, sides))
    flat = np.concatenate([side[:count] for side in sides], axis=2).reshape(-1)
    width = int(stride_latent + stride_rotary)
    attend(
        (grid[0], 1, grid[2]), q=q, k_cache=flat, v_cache=flat, out=out, parts=parts, tables=tables,
        visible=visible, query_blocks=query_blocks, slopes=parts[:0], sinks=parts[:0],
        scale=scale, softcap=0.0, num_tokens=num_tokens, group=group,
        head_dim=int(latent_dim + rotary_dim), value_dim=latent_dim, page=page,
        table_width=table_width, stride_block_k=page * width, stride_block_v=page * width,
        stride_k=width, stride_v=width, scales_block=0, scales_slot=0,
        k_scales=parts[:0], v_scales=parts[:0], SCALED=0, FLOATS=0, stride_q=stride_q,
        stride_out=stride_out, num_chunks=num_chunks, value_parts=1, has_slopes=0, has_sinks=0,
        relative=parts[:0],
        buckets=tables[:0], reach=0, EXTRAS=0, BLOCK_M=BLOCK_M, CHUNK=CHUNK, SPLIT=SPLIT,
    )  # fmt: skip


def _rows(numbers: Numbers, stride: int, page: int, width: int) -> Numbers:
    """The layer's part of each whole block: [blocks, page, width]."""
    size = int(page * width)
    count = (len(numbers) - size) // int(stride) + 1 if len(numbers) >= size else 0
    return rows_of(numbers, count, stride, size).reshape(count, page, width)

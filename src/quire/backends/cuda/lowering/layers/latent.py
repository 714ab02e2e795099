"""Latent attention: all heads share one row of K, of which V is the first part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.kernel import (
    CACHE_TYPES,
    ITEM_BYTES,
    TYPE_NAMES,
    Action,
    Arguments,
    Kernel,
    Launch,
    cache_types,
)
from quire.backends.cuda.lowering import attention
from quire.backends.cuda.lowering.attention import merge_kernel, write_kernel
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.lowering.visible import FIELDS, View, most_query_blocks, query_blocks
from quire.backends.cuda.step import Integers, Step, StepArray, most_context
from quire.program import Attention

WIDTH = 512
"""The most numbers of a latent row that kernels are compiled for."""
TILE, VALUE, STEP = 16, 128, 32
"""Positions of a tile; numbers of a result that a program computes; numbers of a query and of keys
that are multiplied at once."""


def attend_latent_kernel(dtype: str, cache: str, *, is_split: bool) -> Kernel:
    """Attention of queries over a cache of the same type, or of integers."""
    integers = (
        "num_tokens", "group", "latent_dim", "rotary_dim", "page", "table_width", "stride_block",
        "stride_latent", "stride_rotary", "scales_block", "stride_q", "stride_out", "num_chunks",
    )  # fmt: skip
    held, formats = cache_types(cache)
    types = (
        ("q", f"*{dtype}"), ("latent", f"*{held}"), ("rotary", f"*{held}"),
        ("latent_scales", "*fp32"), ("rotary_scales", "*fp32"), ("out", f"*{dtype}"),
        ("parts", "*fp32"), ("tables", "*i32"), ("visible", "*i32"), ("query_blocks", "*i32"),
        ("scale", "fp32"), *((name, "i32") for name in integers),
    )  # fmt: skip
    constants = (
        ("BLOCK_M", attention.BLOCK_M), ("VALUE", VALUE), ("TILE", TILE), ("STEP", STEP),
        ("CHUNK", attention.CHUNK), ("SPLIT", int(is_split)), *formats,
    )  # fmt: skip
    return Kernel("latent", "attend_latent", types, constants, num_warps=8)


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches for the sizes of real models, which are aligned."""
    for dtype in TYPE_NAMES.values():
        yield merge_kernel(dtype, WIDTH)
        for cache in (dtype, "i8", "f8"):
            yield write_kernel(dtype, cache, WIDTH)
            for is_split in (False, True):
                yield attend_latent_kernel(dtype, cache, is_split=is_split).aligned()


def lower_latent_attention(op: Attention, lowering: Lowering) -> Emit:
    """Writes the rows of K, and attends."""
    if any((op.softcap, op.alibi_slopes, op.sinks, op.relative)):
        lowering.refuse("latent attention with a soft cap, slopes, sinks or relative positions")
    latent = _Latent(op, lowering)

    def emit(step: Step) -> Iterator[Action]:
        yield latent.write(step)
        yield from latent.attend(step)

    return emit


class _Latent:
    """The launches of one op."""

    def __init__(self, op: Attention, lowering: Lowering) -> None:
        if op.k is None or op.layer is None or (op.value_dim or 0) > WIDTH:
            lowering.refuse(f"latent attention with rows of {op.value_dim} numbers")
        place = self._place = lowering.layer(op.layer, may_have_scales=True)
        self._op, self._page = op, lowering.kv.block_size
        self._q, self._k, self._out = (lowering.rows[value] for value in (op.q, op.k, op.out))
        self._dims = (op.value_dim or 0, op.head_dim - (op.value_dim or 0))
        cache = self._cache = CACHE_TYPES[lowering.kv.dtype]
        if cache not in (lowering.type_name, "i8", "f8"):
            lowering.refuse(f"latent attention over a KV cache of {lowering.kv.dtype}")
        self._stride = place.block_bytes // ITEM_BYTES[cache]
        sides = (place.k, place.v, *(place.scales or ()))
        self._sides = [lowering.cache_from(side.begin) for side in sides]
        none = lowering.numbers(np.zeros(1, np.float32))
        latent_scales, rotary_scales = self._sides[2:] or (none, none)
        self._scales: Arguments = {"k_scales": rotary_scales, "v_scales": latent_scales,
                                   "scales_block": place.block_bytes // 4}  # fmt: skip
        self._most_tiles = 2 * lowering.facts.num_processors
        row_bytes = 4 * op.num_heads * (self._dims[0] + 2)
        self._most_parts = lowering.split_bytes // row_bytes
        options, view, group = lowering.options, View.of(op), op.num_heads
        chunks = -(-options.max_model_len // attention.CHUNK)
        needed = min(self._most_parts, chunks * options.max_num_tokens) if chunks > 1 else 0
        self._parts = lowering.scratch(row_bytes * needed)
        self._view, height = view, attention.BLOCK_M
        lowering.arrays.add(view, StepArray(view.visible, 3 * options.max_num_tokens))

        def blocks(batch: StepBatch) -> Integers:
            return query_blocks(batch, view.visible(batch), group, height)

        most = most_query_blocks(options.max_num_tokens, options.max_num_seqs, group, height)
        lowering.arrays.add((view, group), StepArray(blocks, FIELDS * most))

    def write(self, step: Step) -> Launch:
        """A row that is not finite is stored as 0, with a rotary part of NaN: it makes the scores
        of tokens that see it NaN, and changes nothing for others."""
        latent_dim, rotary_dim = self._dims
        k, v = self._k.columns(latent_dim, rotary_dim), self._k.columns(0, latent_dim)
        kernel = write_kernel(k.type_name, self._cache, WIDTH)
        args: Arguments = {
            "k": k.buffer, "v": v.buffer, "slots": step.buffers["slots", self._place.group],
            "k_cache": self._sides[1], "v_cache": self._sides[0], "page": self._page,
            "head_dim": rotary_dim, "value_dim": latent_dim, "stride_k": k.stride,
            "stride_v": v.stride, "stride_block_k": self._stride, "stride_block_v": self._stride,
            "stride_slot_k": self._place.v.count, "stride_slot_v": self._place.k.count,
            **self._scales, "scales_slot": 1,
        }  # fmt: skip
        return Launch(kernel, (step.num_tokens, 1), args)

    def attend(self, step: Step) -> Iterator[Launch]:
        """All queries of the step."""
        op, place, group = self._op, self._place, self._op.num_heads
        num_blocks, _ = step.shapes[self._view, group]
        num_chunks = -(-most_context(step.batch) // attention.CHUNK)
        is_split = (
            num_chunks > 1
            and num_blocks < self._most_tiles
            and num_chunks * step.num_tokens <= self._most_parts
        )
        tables = ("tables", place.group)
        shared: Arguments = {
            "out": self._out.buffer, "parts": self._parts(0), "visible": step.buffers[self._view],
            "num_tokens": step.num_tokens, "stride_out": self._out.stride,
            "num_chunks": num_chunks,
        }  # fmt: skip
        args: Arguments = {
            **shared, "q": self._q.buffer, "latent": self._sides[0], "rotary": self._sides[1],
            "tables": step.buffers[tables], "query_blocks": step.buffers[self._view, group],
            "scale": op.scale, "group": group, "latent_dim": self._dims[0],
            "rotary_dim": self._dims[1], "page": self._page, "table_width": step.shapes[tables][1],
            "stride_block": self._stride, "stride_latent": place.k.count,
            "stride_rotary": place.v.count, "stride_q": self._q.stride,
            "latent_scales": self._scales["v_scales"], "rotary_scales": self._scales["k_scales"],
            "scales_block": self._scales["scales_block"],
        }  # fmt: skip
        kernel = attend_latent_kernel(self._q.type_name, self._cache, is_split=is_split)
        grid = (num_blocks, -(-self._dims[0] // VALUE), num_chunks if is_split else 1)
        yield Launch(kernel.fitted(args), grid, args)
        if is_split:
            yield self._merged(step, shared)

    def _merged(self, step: Step, shared: Arguments) -> Launch:
        args: Arguments = {
            **shared, "sinks": self._parts(0), "value_dim": self._dims[0], "has_sinks": 0
        }  # fmt: skip
        kernel = merge_kernel(self._out.type_name, WIDTH)
        return Launch(kernel, (step.num_tokens, self._op.num_heads), args)

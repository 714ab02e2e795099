"""Attention over the paged KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

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
    Upload,
    cache_types,
)
from quire.backends.cuda.lowering.context import Emit, LayerPlace, Lowering, Rows
from quire.backends.cuda.lowering.visible import (
    FIELDS,
    View,
    most_query_blocks,
    query_blocks,
)
from quire.backends.cuda.step import Integers, Step, StepArray, most_context
from quire.program import Attention

BLOCK_M = 64
CHUNK = 256
"""Positions that are reduced with a softmax of their own."""
_GIVEN_ROWS = 64
HEADS = (32, 64, 128, 256)
"""Sizes of heads that kernels are compiled for; a head is padded to the next one."""
PLAIN, CHANGED, RELATIVE = range(3)
"""Scores are products; have a soft cap or slopes; or numbers for distances too."""


def tile_of(dtype: str, cache: str, head: int, extras: int, *, is_aligned: bool) -> int:
    """Positions of a tile, which divide CHUNK: as many as registers and shared memory have room
    for."""
    if "fp32" in (dtype, cache):
        return 16
    if head == 32:
        return 32
    if head > 128 or not is_aligned:
        return 16
    return 64 if head == 64 and cache == "bf16" and extras != RELATIVE else 32


def value_of(dtype: str, cache: str, head: int, *, is_aligned: bool) -> int:
    """Numbers of a result that one program computes: as many as registers have room for."""
    if "fp32" in (dtype, cache):
        return min(head, 64 if is_aligned else 32)
    return min(head, 64 if cache in ("i8", "f8") and not is_aligned else 128)


def attend_kernel(
    dtype: str, cache: str, head: int, *, is_split: bool, extras: int, is_aligned: bool
) -> Kernel:
    """Attention of queries of one type over a cache of another."""
    integers = (
        "num_tokens", "group", "head_dim", "value_dim", "page", "table_width", "stride_block_k",
        "stride_block_v", "stride_k", "stride_v", "scales_block", "scales_slot", "stride_q",
        "stride_out", "num_chunks", "value_parts", "has_slopes", "has_sinks",
    )  # fmt: skip
    held, formats = cache_types(cache)
    types = (
        ("q", f"*{dtype}"), ("k_cache", f"*{held}"), ("v_cache", f"*{held}"),
        ("k_scales", "*fp32"), ("v_scales", "*fp32"), ("out", f"*{dtype}"), ("parts", "*fp32"),
        ("tables", "*i32"), ("visible", "*i32"),
        ("query_blocks", "*i32"), ("slopes", "*fp32"), ("sinks", "*fp32"), ("scale", "fp32"),
        ("softcap", "fp32"), *((name, "i32") for name in integers),
        ("relative", "*fp32"), ("buckets", "*i32"), ("reach", "i32"),
    )  # fmt: skip
    is_wide = dtype != cache and not (held == "i8" and dtype == "bf16")
    constants = (
        ("BLOCK_M", BLOCK_M), ("HEAD", head),
        ("VALUE", value_of(dtype, cache, head, is_aligned=is_aligned)),
        ("TILE", tile_of(dtype, cache, head, extras, is_aligned=is_aligned)), ("CHUNK", CHUNK),
        ("SPLIT", int(is_split)), ("EXTRAS", extras), ("WIDE", int(is_wide)), *formats,
        ("HOIST", 1),
    )  # fmt: skip
    return Kernel(
        "attention", "attend", types, constants, is_aligned=is_aligned, num_warps=8
    )  # fmt: skip


def merge_kernel(dtype: str, head: int) -> Kernel:
    """The merge of a row's chunks."""
    types = (
        ("parts", "*fp32"), ("out", f"*{dtype}"), ("visible", "*i32"), ("sinks", "*fp32"),
        ("num_tokens", "i32"), ("value_dim", "i32"), ("stride_out", "i32"), ("num_chunks", "i32"),
        ("has_sinks", "i32"),
    )  # fmt: skip
    constants = (("HEAD", head), ("CHUNK", CHUNK))
    return Kernel("attention", "merge", types, constants, num_warps=1)


def write_kernel(dtype: str, cache: str, head: int) -> Kernel:
    """The write of a token's K and V."""
    integers = (
        "page", "head_dim", "value_dim", "stride_k", "stride_v", "stride_block_k",
        "stride_block_v", "stride_slot_k", "stride_slot_v", "scales_block", "scales_slot",
    )  # fmt: skip
    held, formats = cache_types(cache)
    types = (
        ("k", f"*{dtype}"), ("v", f"*{dtype}"), ("slots", "*i32"), ("k_cache", f"*{held}"),
        ("v_cache", f"*{held}"), ("k_scales", "*fp32"), ("v_scales", "*fp32"),
        *((name, "i32") for name in integers),
    )  # fmt: skip
    return Kernel("kv_write", "write", types, (("HEAD", head), *formats), num_warps=1)


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    types = TYPE_NAMES.values()
    for dtype, cache, head in product(types, CACHE_TYPES.values(), HEADS):
        yield write_kernel(dtype, cache, head)
        for extras, is_aligned in product((PLAIN, CHANGED, RELATIVE), (False, True)):
            is_used = extras == extras_of(extras, dtype, cache, is_aligned=is_aligned)
            if not is_used or (extras == RELATIVE and (dtype != cache or not is_aligned)):
                continue
            for is_split in (False,) if extras == RELATIVE else (False, True):
                yield attend_kernel(
                    dtype, cache, head, is_split=is_split, extras=extras, is_aligned=is_aligned
                )
    for dtype, head in product(types, HEADS):
        yield merge_kernel(dtype, head)


def extras_of(wanted: int, dtype: str, cache: str, *, is_aligned: bool) -> int:
    """The kind of kernel for scores of a kind. `CHANGED` computes `PLAIN` scores with the same
    bits; only those kernels that models use most are compiled for these alone."""
    is_frequent = dtype == "bf16" and cache != "fp32" and is_aligned
    return CHANGED if wanted == PLAIN and not is_frequent else wanted


def lower_attention(op: Attention, lowering: Lowering) -> Emit:
    """Writes K and V, if the op has any, and attends."""
    if op.layer is None or op.is_latent:
        lowering.refuse("attention of this kind here")
    attend = Attend(op, lowering, lowering.layer(op.layer, may_have_scales=True))

    def emit(step: Step) -> Iterator[Action]:
        if op.k is not None and op.v is not None:
            k, v = lowering.rows[op.k], lowering.rows[op.v]
            yield attend.write(step, k, v, 0, step.num_tokens)
            yield from attend.write_given(step, k)
        yield from attend.attend(step)

    return emit


class Attend:
    """The launches of one op."""

    def __init__(
        self, op: Attention, lowering: Lowering, place: LayerPlace, cache_type: str | None = None
    ) -> None:
        """`cache_type`: None: that of the KV cache."""
        self._op, self._place, self._page = op, place, lowering.kv.block_size
        self._q, self._out = lowering.rows[op.q], lowering.rows[op.out]
        self._value_dim = op.value_dim or op.head_dim
        self._group = op.num_heads // op.num_kv_heads
        self._head = _padded_head(max(op.head_dim, self._value_dim), lowering)
        self._cache_type = cache_type or CACHE_TYPES[lowering.kv.dtype]
        self._extras = CHANGED if op.softcap is not None or op.alibi_slopes is not None else PLAIN
        if op.relative is not None:
            self._extras = RELATIVE
        self._block_stride = place.block_bytes // ITEM_BYTES[self._cache_type]
        self._k, self._v = (lowering.cache_from(side.begin) for side in (place.k, place.v))
        self._slopes = lowering.numbers(np.array(op.alibi_slopes or [0.0], np.float32))
        scales = [lowering.cache_from(side.begin) for side in place.scales or ()]
        k_scales, v_scales = scales or (self._slopes, self._slopes)
        self._scales: Arguments = {
            "k_scales": k_scales, "v_scales": v_scales, "scales_block": place.block_bytes // 4,
            "scales_slot": place.scales[0].count if place.scales else 0,
        }  # fmt: skip
        self._sinks = lowering.vector(op.sinks)
        self._relative: Arguments = {
            "relative": lowering.vector(op.relative),
            "buckets": lowering.numbers(np.array(op.buckets or [0], np.int32)),
            "reach": len(op.buckets) // 2,
        }  # fmt: skip
        self._most_tiles = 2 * lowering.facts.num_processors
        self._row_bytes = 4 * op.num_heads * (self._value_dim + 2)
        self._most_parts = lowering.split_bytes // self._row_bytes
        self._parts = lowering.scratch(self._row_bytes * self._parts_needed(lowering))
        width = 2 * place.k.count
        self._given = lowering.scratch(_GIVEN_ROWS * width * lowering.item)
        self._view = View.of(op)
        self._add_arrays(lowering)

    def _parts_needed(self, lowering: Lowering) -> int:
        """The most chunks of tokens that are kept at once."""
        options = lowering.options
        chunks = -(-options.max_model_len // CHUNK)
        if chunks == 1:
            return 0
        return min(self._most_parts, chunks * options.max_num_tokens)

    def _add_arrays(self, lowering: Lowering) -> None:
        options, view, group = lowering.options, self._view, self._group
        visible = StepArray(view.visible, 3 * options.max_num_tokens)
        lowering.arrays.add(view, visible)

        def blocks(batch: StepBatch) -> Integers:
            return query_blocks(batch, view.visible(batch), group, BLOCK_M)

        most = most_query_blocks(options.max_num_tokens, options.max_num_seqs, group, BLOCK_M)
        lowering.arrays.add((view, group), StepArray(blocks, FIELDS * most))

    def write(self, step: Step, k: Rows, v: Rows, first: int, count: int) -> Launch:
        """K and V of some tokens of the step, from one on."""
        place, op = self._place, self._op
        kernel = write_kernel(k.type_name, self._cache_type, self._head)
        args: Arguments = {
            **self._scales, "k": k.buffer, "v": v.buffer,
            "slots": step.buffers["slots", place.group].from_byte(4 * first),
            "k_cache": self._k, "v_cache": self._v, "page": self._page, "head_dim": op.head_dim,
            "value_dim": self._value_dim, "stride_k": k.stride, "stride_v": v.stride,
            "stride_block_k": self._block_stride, "stride_block_v": self._block_stride,
            "stride_slot_k": place.k.count, "stride_slot_v": place.v.count,
        }  # fmt: skip
        return Launch(kernel, (count, op.num_kv_heads), args)

    def write_given(self, step: Step, like: Rows) -> Iterator[Action]:
        """K and V that are given with the step take the place of those that were written, some
        rows at a time."""
        width, layer = like.width, self._op.layer or 0
        for given in step.batch.given_kv:
            own = given.rows[:, 2 * layer * width : 2 * (layer + 1) * width]
            for first in range(0, len(own), _GIVEN_ROWS):
                rows = own[first : first + _GIVEN_ROWS]
                pair = Rows(self._given(0), 2 * width, 2 * width, like.type_name)
                yield Upload(pair.buffer, pair.encoded(rows))
                k, v = pair.columns(0, width), pair.columns(width, width)
                yield self.write(step, k, v, given.first + first, len(rows))

    def attend(self, step: Step) -> Iterator[Launch]:
        """All queries of the step."""
        op, place = self._op, self._place
        num_blocks, _ = step.shapes[self._view, self._group]
        num_chunks = -(-most_context(step.batch) // CHUNK)
        is_split = (
            num_chunks > 1
            and op.relative is None
            and num_blocks * op.num_kv_heads < self._most_tiles
            and num_chunks * step.num_tokens <= self._most_parts
        )
        shared: Arguments = {
            "out": self._out.buffer, "parts": self._parts(0), "visible": step.buffers[self._view],
            "sinks": self._sinks, "num_tokens": step.num_tokens, "value_dim": self._value_dim,
            "stride_out": self._out.stride, "num_chunks": num_chunks,
            "has_sinks": int(op.sinks is not None),
        }  # fmt: skip
        tables = ("tables", place.group)
        args: Arguments = {
            **shared, **self._scales, **self._relative, "q": self._q.buffer,
            "k_cache": self._k, "v_cache": self._v,
            "tables": step.buffers[tables], "query_blocks": step.buffers[self._view, self._group],
            "slopes": self._slopes, "scale": op.scale, "softcap": op.softcap or 0.0,
            "group": self._group, "head_dim": op.head_dim, "page": self._page,
            "table_width": step.shapes[tables][1], "stride_block_k": self._block_stride,
            "stride_block_v": self._block_stride, "stride_k": place.k.count,
            "stride_v": place.v.count, "stride_q": self._q.stride,
            "has_slopes": int(op.alibi_slopes is not None),
        }  # fmt: skip
        kernel = self._kernel(is_split=is_split, is_aligned=True)
        if not kernel.fits(args):
            kernel = self._kernel(is_split=is_split, is_aligned=False)
        value_parts = -(-self._value_dim // dict(kernel.constants)["VALUE"])
        grid = (num_blocks, op.num_kv_heads * value_parts, num_chunks if is_split else 1)
        yield Launch(kernel, grid, {**args, "value_parts": value_parts})
        if is_split:
            kernel = merge_kernel(self._out.type_name, self._head)
            yield Launch(kernel, (step.num_tokens, op.num_heads), shared)

    def _kernel(self, *, is_split: bool, is_aligned: bool) -> Kernel:
        dtype, cache = self._q.type_name, self._cache_type
        extras = extras_of(self._extras, dtype, cache, is_aligned=is_aligned)
        return attend_kernel(
            dtype, cache, self._head, is_split=is_split, extras=extras, is_aligned=is_aligned
        )


def _padded_head(head_dim: int, lowering: Lowering) -> int:
    """The smallest size that kernels are compiled for. Raises BackendError for a larger head."""
    for head in HEADS:
        if head_dim <= head:
            return head
    return lowering.refuse(
        f"attention with heads of {head_dim} numbers; {HEADS[-1]} is the largest size"
    )

"""K and V of a step alone: the memory of attention without a cache.

A program that keeps nothing from step to step (an encoder) has no KV cache. Its K and V lie in a
small cache that belongs to the step: each request's tokens begin a block, and every layer uses the
same blocks, one layer after the other. So the kernels of attention over a cache compute it too.

In a step of several pieces, K and V of the next layer are written while those of this one are read,
so a block has a slot for each of the two.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompileOptions, KVCacheSpec, StepBatch
from quire.config.kv_groups import FullGroup, KVShape
from quire.config.kv_layout import KVLayout
from quire.errors import BackendError
from quire.program import Program
from quire.units import ceil_div

_UNUSED = KVShape(1, 16, 16)
"""The shape of a cache that no op uses."""


def has_step_kv(program: Program) -> bool:
    """Whether K and V live for one step; also for a program that keeps nothing, because the native
    library has at least one block. Raises BackendError for a program with both kinds."""
    kinds = {op.layer is None for op in program.attention_ops()}
    if len(kinds) > 1:
        raise BackendError(
            f"{program.name}: the CPU backend needs a KV cache for all attention layers or for none"
        )
    return kinds == {True} or not (kinds or program.memories())


def step_kv(program: Program, kv: KVCacheSpec, options: CompileOptions) -> KVCacheSpec:
    """A cache for the tokens of the largest step, in the model's dtype."""
    shapes = {
        KVShape(op.num_kv_heads, op.head_dim, op.value_dim or op.head_dim)
        for op in program.attention_ops()
    }
    shapes = shapes or {_UNUSED}
    if len(shapes) > 1:
        raise BackendError(f"{program.name}: attention without a cache needs one shape of heads")
    num_slots = 2 if options.max_piece_tokens else 1
    layout = KVLayout((FullGroup(tuple(range(num_slots)), shapes.pop()),), num_slots)
    num_blocks = ceil_div(options.max_num_tokens, kv.block_size) + options.max_num_seqs
    return replace(kv, num_blocks=num_blocks, dtype=options.dtype, layout=layout)


def step_tables(batch: StepBatch, block_size: int) -> NDArray[np.int32]:
    """Block tables [R, 1, entries]: the blocks of the requests follow each other. Raises
    BackendError unless the step has all tokens of each request."""
    if not np.array_equal(np.diff(batch.seq_starts), batch.context_lens):
        raise BackendError("attention without a cache needs all tokens of a request in a step")
    counts = -(-batch.context_lens // block_size)
    firsts = np.cumsum(counts) - counts
    entries = np.arange(counts.max(initial=1))
    return (firsts[:, None] + entries).astype(np.int32)[:, None]

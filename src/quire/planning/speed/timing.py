"""Times steps of a model with made-up weights and only a few of its layers.

Layers of the same kind take the same time, so the time of a whole step follows from that of a few
layers. The number of layers is chosen so that they read far more than the caches hold.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from quire.backends.base import Backend, SamplingColumns
from quire.backends.records import KVCacheSpec, StepBatch
from quire.planning.compile_plan import CompilePlan
from quire.program import Program, kv_layout
from quire.program.fewer_layers import FewerLayers, with_fewer_layers
from quire.units import MiB

_READ_BYTES = 160 * MiB
"""Minimum bytes of weights that one token reads in a timed step: data that the next step reads
again must have left the caches."""
_LEAST_STEPS = 3
_FILL_BLOCKS = 64
"""Number of KV blocks written at once."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the timed steps."""

    most_requests: int
    context: int
    """Number of tokens of each request before the one that a step computes."""
    prompt: int
    most_drafts: int = 0
    """Maximum number of draft tokens of each request."""


class StepTimer:
    """A compiled model with fewer layers that stands in for the whole one. Must be closed."""

    def __init__(self, plan: CompilePlan, backend: Backend, sizes: Sizes, least_s: float) -> None:
        """Repeat steps of one size for `least_s`. Raises BackendError if the backend cannot time
        steps."""
        self._sizes = sizes
        self._least_s = least_s
        self._few = _few_layers(plan, backend)
        program = self._few.program
        new = 1 + sizes.most_drafts
        longest = max(sizes.context + new, sizes.prompt)
        kv = backend.sized(program, replace(plan.kv, layout=kv_layout(program, longest)))
        prompt_blocks = blocks_needed(kv, 1, sizes.prompt)
        num_blocks = max(blocks_needed(kv, sizes.most_requests, sizes.context + new), prompt_blocks)
        self._kv = replace(kv, num_blocks=num_blocks)
        options = replace(
            plan.options,
            max_num_tokens=max(sizes.prompt, sizes.most_requests * new),
            max_num_seqs=sizes.most_requests * new,
            max_model_len=longest,
        )
        self._model = backend.compile_stand_in(program, self._kv, options)
        self._fill_cache(backend.kv_block_bytes(program, self._kv))

    def decode_seconds(self, num_requests: int) -> float:
        """Return the time of a step of the whole model with one token per request."""
        vocab_size = self._few.program.vocab_size
        return self._seconds(decode_step(self._kv, num_requests, self._sizes.context, vocab_size))

    def draft_seconds(self, num_requests: int, num_drafts: int) -> float:
        """Return the time of such a step if each request also has `num_drafts` draft tokens."""
        vocab_size, context = self._few.program.vocab_size, self._sizes.context
        return self._seconds(draft_step(self._kv, num_requests, context, num_drafts, vocab_size))

    def prompt_seconds(self) -> float:
        """Return the time of a step of the whole model with one prompt."""
        vocab_size = self._few.program.vocab_size
        return self._seconds(prompt_step(self._kv, self._sizes.prompt, vocab_size))

    def close(self) -> None:
        """Free the memory."""
        self._model.close()

    def __enter__(self) -> StepTimer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _seconds(self, batch: StepBatch) -> float:
        begin = time.perf_counter()
        self._model.step(batch)  # warm-up: allocates memory and fills caches
        first = time.perf_counter() - begin
        num_steps = max(_LEAST_STEPS, math.ceil(self._least_s / first))
        begin = time.perf_counter()
        times = self._model.op_seconds(batch, num_steps)
        outside_ops = (time.perf_counter() - begin) / num_steps - sum(one for _, one in times)
        stands_for: Mapping[int, float] = self._few.stands_for
        ops = sum(
            seconds * (1.0 if place.layer is None else stands_for[place.layer])
            for place, seconds in times
        )
        return ops + max(outside_ops, 0.0)

    def _fill_cache(self, block_bytes: int) -> None:
        """Write numbers of about 0.01: reading memory that was never written would be too fast."""
        data = np.resize(np.array([0x3C, 0x3B, 0xBC], np.uint8), (_FILL_BLOCKS, block_bytes))
        for begin in range(0, self._kv.num_blocks, _FILL_BLOCKS):
            ids = np.arange(begin, min(begin + _FILL_BLOCKS, self._kv.num_blocks), dtype=np.int32)
            self._model.write_blocks(ids, data[: len(ids)])


def _few_layers(plan: CompilePlan, backend: Backend) -> FewerLayers:
    """Return the program with the fewest layers that read `_READ_BYTES`, or with all layers."""

    def is_enough(program: Program) -> bool:
        return replace(plan, program=program).bytes_read(backend, 1) >= _READ_BYTES

    num_layers = len(plan.program.attention_ops())
    for num_alike in range(1, num_layers):
        few = with_fewer_layers(plan.program, num_alike)
        if is_enough(few.program):
            return few
    return with_fewer_layers(plan.program, num_layers)


def decode_step(kv: KVCacheSpec, num_requests: int, context: int, vocab_size: int) -> StepBatch:
    """Return a step with one token per request after `context` earlier tokens."""
    return _step(kv, num_requests, context, 1, 1, vocab_size)


def draft_step(
    kv: KVCacheSpec, num_requests: int, context: int, num_drafts: int, vocab_size: int
) -> StepBatch:
    """Return the same step with `num_drafts` draft tokens per request."""
    return _step(kv, num_requests, context, 1 + num_drafts, 1 + num_drafts, vocab_size)


def prompt_step(kv: KVCacheSpec, num_tokens: int, vocab_size: int) -> StepBatch:
    """Return a step with a whole prompt and the choice of its next token."""
    return _step(kv, 1, 0, num_tokens, 1, vocab_size)


def blocks_needed(kv: KVCacheSpec, num_requests: int, num_tokens: int) -> int:
    """Return the number of blocks for requests of `num_tokens` tokens, those of the step
    included."""
    width = kv.layout.table_width(num_tokens, kv.block_size)
    return num_requests * len(kv.layout.groups) * width


def _step(
    kv: KVCacheSpec, num_requests: int, context: int, new: int, sampled: int, vocab_size: int
) -> StepBatch:
    """Return a step with `new` tokens per request, after the last `sampled` of which it samples.
    Sampling uses the default: temperature 1."""
    num_tokens = num_requests * new
    entries = kv.layout.table_width(context + new, kv.block_size)
    shape = (num_requests, len(kv.layout.groups), entries)
    ids = np.random.default_rng(0).integers(0, vocab_size, num_tokens, dtype=np.int32)
    starts = np.arange(num_requests + 1, dtype=np.int32) * np.int32(new)
    return StepBatch(
        token_ids=ids,
        positions=np.tile(np.arange(context, context + new, dtype=np.int32), num_requests),
        seq_starts=starts,
        context_lens=np.full(num_requests, context + new, np.int32),
        block_tables=np.arange(np.prod(shape), dtype=np.int32).reshape(shape),
        logits_rows=(starts[1:, None] + np.arange(-sampled, 0, dtype=np.int32)).ravel(),
        sampling=SamplingColumns(
            temperature=np.ones(num_requests * sampled, np.float32),
            seeds=np.arange(num_requests, dtype=np.uint64).repeat(sampled),
            counters=np.full(num_requests * sampled, context + new, np.uint64),
        ),
    )

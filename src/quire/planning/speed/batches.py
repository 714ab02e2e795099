"""Batches of the timed steps: decoding of several requests, or one prompt."""

from __future__ import annotations

import numpy as np

from quire.backends.base import KVCacheSpec, SamplingColumns, StepBatch


def decode_step(kv: KVCacheSpec, num_requests: int, context: int, vocab_size: int) -> StepBatch:
    """Return a step with one token per request after `context` earlier tokens."""
    return _step(kv, num_requests, context, 1, vocab_size)


def prompt_step(kv: KVCacheSpec, num_tokens: int, vocab_size: int) -> StepBatch:
    """Return a step with a whole prompt and the choice of its next token."""
    return _step(kv, 1, 0, num_tokens, vocab_size)


def blocks_needed(kv: KVCacheSpec, num_requests: int, context: int) -> int:
    """Return the number of blocks for a step whose requests have `context` tokens and compute one
    more."""
    width = kv.layout.table_width(context + 1, kv.block_size)
    return num_requests * len(kv.layout.groups) * width


def _step(kv: KVCacheSpec, num_requests: int, context: int, new: int, vocab_size: int) -> StepBatch:
    """Return a step with `new` tokens per request. Sampling uses the default: temperature 1."""
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
        logits_rows=starts[1:] - np.int32(1),
        sampling=SamplingColumns(
            temperature=np.ones(num_requests, np.float32),
            seeds=np.arange(num_requests, dtype=np.uint64),
            counters=np.full(num_requests, context + new, np.uint64),
        ),
    )

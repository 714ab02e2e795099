"""Batches of the timed steps: decoding of several requests, or one prompt."""

from __future__ import annotations

import numpy as np

from quire.backends.base import KVCacheSpec, SamplingColumns, StepBatch


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

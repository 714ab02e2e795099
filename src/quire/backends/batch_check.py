"""Refuses a malformed step before it can read or write the wrong place.

NumPy takes a negative index for one from the end, so that a wrong table would silently
harm another request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompileOptions, KVCacheSpec, StepBatch
from quire.errors import BackendError
from quire.program import MAX_AXES


def check_batch(
    batch: StepBatch, vocab_size: int, kv: KVCacheSpec, options: CompileOptions
) -> None:
    """Raises BackendError unless every index of the batch lies within what was compiled."""
    tokens, requests = len(batch.token_ids), len(batch.context_lens)
    if tokens > options.max_num_tokens or requests > options.max_num_seqs:
        raise BackendError(
            f"a step of {tokens} tokens for {requests} requests is larger than "
            f"{options.max_num_tokens} for {options.max_num_seqs}"
        )
    if len(batch.positions) != tokens or len(batch.block_tables) != requests:
        raise BackendError(
            "token_ids and positions, or context_lens and block_tables, differ in length"
        )
    groups, shape = len(kv.layout.groups), batch.block_tables.shape
    if len(shape) != 3 or shape[1] != groups:
        raise BackendError(f"block_tables are {list(shape)}, not [{requests}, {groups}, entries]")
    starts = batch.seq_starts
    if (
        len(starts) != requests + 1
        or starts[0] != 0
        or starts[-1] != tokens
        or np.any(np.diff(starts) < 0)
    ):
        raise BackendError(f"seq_starts {starts.tolist()} do not divide {tokens} tokens")
    _check_range("token id", batch.token_ids, vocab_size)
    _check_range("logits row", batch.logits_rows, tokens)
    places = batch.logits_places
    if places is not None and len(places) != len(batch.logits_rows):
        raise BackendError(f"{len(places)} logits_places for {len(batch.logits_rows)} rows")
    if batch.sampling is not None:
        batch.sampling.check(len(batch.logits_rows))
        for lists in batch.sampling.given_lists(len(batch.logits_rows)).values():
            _check_range("token id", lists.ids, vocab_size)
        if batch.sampling.mask is not None:
            batch.sampling.mask.check(len(batch.logits_rows), vocab_size)
    _check_requests(batch, kv)


def check_axes_and_spans(batch: StepBatch, max_model_len: int) -> None:
    """Raises BackendError unless every token has its axes, and a span that the step has."""
    tokens = len(batch.token_ids)
    axes, spans = batch.axis_positions, batch.spans
    if axes is not None:
        if axes.ndim != 2 or len(axes) != tokens or not 1 <= axes.shape[1] <= MAX_AXES:
            raise BackendError(
                f"axis_positions must be [{tokens}, 1 to {MAX_AXES}], not {list(axes.shape)}"
            )
        _check_range("axis position", axes, max_model_len)
    if spans is None:
        return
    if spans.shape != (2, tokens):
        raise BackendError(f"spans must be [2, {tokens}], not {list(spans.shape)}")
    for request, length in enumerate(batch.context_lens.tolist()):
        begin, end = batch.seq_starts[request : request + 2]
        (firsts, lasts), positions = spans[:, begin:end], batch.positions[begin:end]
        is_inside = (firsts >= positions[:1]) & (firsts <= positions)
        is_inside &= (lasts >= positions) & (lasts < length)
        if not is_inside.all() or (np.diff(spans[:, begin:end]) < 0).any():
            raise BackendError(f"request {request}: a token is outside of its span, or the step is")


def check_token_types(batch: StepBatch, num_types: int) -> None:
    """Raises BackendError unless every token has a type that the program knows."""
    if batch.token_types is None:
        return
    if len(batch.token_types) != len(batch.token_ids):
        raise BackendError("token_types and token_ids differ in length")
    _check_range("token type", batch.token_types, num_types)


def _check_requests(batch: StepBatch, kv: KVCacheSpec) -> None:
    """Raises BackendError unless positions end where contexts do, and the blocks exist."""
    lengths, counts = batch.context_lens, np.diff(batch.seq_starts)
    wanted = np.repeat(lengths - batch.seq_starts[1:], counts) + np.arange(len(batch.positions))
    if (wrong := np.flatnonzero(wanted != batch.positions)).size:
        request = int(np.searchsorted(batch.seq_starts, wrong[0], side="right")) - 1
        begin, end = batch.seq_starts[request : request + 2]
        raise BackendError(
            f"request {request}: positions {batch.positions[begin:end].tolist()} do not end at "
            f"{lengths[request]} tokens"
        )
    width, size = batch.block_tables.shape[2], kv.block_size
    for index, group in enumerate(kv.layout.groups):
        begins = [group.first_entry(one, size) for one in (lengths - counts).tolist()]
        ends = np.array([group.num_entries(one, size) for one in lengths.tolist()], np.int64)
        if (wrong := np.flatnonzero(ends > width)).size:
            request = int(wrong[0])
            raise BackendError(
                f"request {request}: {lengths[request]} tokens do not fit {width} blocks"
            )
        entry = np.arange(int(ends.max(initial=0)))
        tables = batch.block_tables[:, index, : len(entry)]
        is_read = (entry >= np.array(begins, np.int64)[:, None]) & (entry < ends[:, None])
        _check_range("block id", tables[is_read], kv.num_blocks)


def _check_range(what: str, values: NDArray[np.int32], limit: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= limit):
        wrong = values[(values < 0) | (values >= limit)][0]
        raise BackendError(f"{what} {wrong} is not from 0 to {limit - 1}")

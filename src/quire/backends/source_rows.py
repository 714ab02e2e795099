"""Divides a step of a model with an encoder: the rows of sources, and the tokens of the decoder.

`SourcesEnd` says which ops are computed for which of them. Used by all backends that compile
programs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch, TokenRows
from quire.errors import BackendError


def divided(batch: StepBatch, num_sources: int) -> tuple[StepBatch | None, StepBatch | None]:
    """The step with the source rows alone, which are the first `num_sources` positions of each
    request, and the step with all other tokens; None for a part without rows. Raises BackendError
    if a result of a source row is wanted."""
    is_source = batch.positions < num_sources
    if not is_source.any():
        return None, batch
    if is_source[batch.logits_rows].any():
        raise BackendError("source rows have no logits")
    sources = _part(replace(batch, sampling=None, want_logits=False), is_source)
    return sources, None if is_source.all() else _part(batch, ~is_source)


def _part(batch: StepBatch, is_in: NDArray[np.bool_]) -> StepBatch:
    """The step with some of its tokens: of each request, the first ones or the last ones."""
    tokens = np.flatnonzero(is_in)
    lengths = np.add.reduceat(is_in, batch.seq_starts[:-1], dtype=np.int32)
    requests = np.flatnonzero(lengths)
    starts = np.zeros(len(requests) + 1, np.int32)
    np.cumsum(lengths[requests], out=starts[1:])
    places = np.cumsum(is_in, dtype=np.int32) - 1
    wanted = batch.logits_rows[is_in[batch.logits_rows]]
    adapters = batch.adapters
    return replace(
        batch,
        token_ids=batch.token_ids[tokens],
        positions=batch.positions[tokens],
        seq_starts=starts,
        context_lens=batch.positions[tokens][starts[1:] - 1] + 1,
        block_tables=batch.block_tables[requests],
        logits_rows=places[wanted],
        adapters=None if adapters is None else [adapters[request] for request in requests],
        input_rows=[part for one in batch.input_rows for part in _rows(one, is_in, places)],
    )


def _rows(given: TokenRows, is_in: NDArray[np.bool_], places: NDArray[np.int32]) -> list[TokenRows]:
    """The given rows of the tokens that a part has; these are neighbours."""
    own = np.flatnonzero(is_in[given.first : given.first + len(given.rows)])
    if not len(own):
        return []
    return [TokenRows(int(places[given.first + own[0]]), given.rows[own[0] : own[-1] + 1])]


def joined_rows(
    batch: StepBatch,
    num_sources: int,
    of_sources: NDArray[np.float32] | None,
    of_others: NDArray[np.float32] | None,
) -> NDArray[np.float32] | None:
    """The rows [T, W] that the parts of a step have given; None: they gave none."""
    given = of_sources if of_sources is not None else of_others
    if given is None:
        return None
    is_source = batch.positions < num_sources
    found = np.empty((len(is_source), given.shape[1]), np.float32)
    for is_in, rows in ((is_source, of_sources), (~is_source, of_others)):
        if rows is not None:
            found[is_in] = rows
    return found

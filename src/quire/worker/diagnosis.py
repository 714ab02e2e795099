"""Finds the first op that gave non-finite numbers, for the error message of a request.

Called by `ModelRunner` only after a request has failed. Steps are deterministic and write the same
K/V again, so a step can be repeated and inspected without an effect on other requests.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepModel
from quire.backends.records import StepBatch
from quire.errors import BackendError
from quire.log import get_logger
from quire.program import LOGITS, OpPlace

logger = get_logger(__name__)

Ints = NDArray[np.int32]


def explain_failures(
    model: StepModel, batch: StepBatch, known: Mapping[int, Ints], *, keeps_all: bool
) -> dict[int, str]:
    """Error messages of failed requests of the last step, by index in the batch.

    `known`: by index of a failed request, the tokens it was started with; `keeps_all`: requests
    still have the KV blocks of all these tokens. Takes as long as the step, and about 15 decoding
    steps more if the numbers come from an earlier step.
    """
    text = "the model gave numbers that are not finite (NaN or infinity)"
    try:
        places = _first_places(model, batch, known, keeps_all)
    except BackendError as error:
        logger.warning("%d requests failed: %s; the place is unknown: %s", len(known), text, error)
        return dict.fromkeys(known, text)
    messages = {index: f"{text}, first in: {place}" for index, place in places.items()}
    for message in sorted(set(messages.values())):
        logger.warning("%d requests failed: %s", list(messages.values()).count(message), message)
    return messages


def _first_places(
    model: StepModel, batch: StepBatch, known: Mapping[int, Ints], keeps_all: bool
) -> dict[int, OpPlace]:
    """For each request, the first op that gave a NaN or an infinity.

    Steps of earlier tokens are not repeated if another request may have their blocks now.
    """
    found = model.find_not_finite(batch)
    places = {index: found[index] or LOGITS for index in known}
    searches = []
    for index, place in places.items():
        num_before = int(batch.positions[batch.seq_starts[index]])
        if place.reads_cache and num_before and keeps_all:
            searches.append(_Search(index, known[index], min(num_before, len(known[index]))))
    # All searches together, with one token each per step.
    while pending := [search for search in searches if search.low < search.high]:
        found = model.find_not_finite(_tokens_between(batch, pending))
        for search, first in zip(pending, found, strict=True):
            search.narrow(first)
    places.update({one.index: one.place for one in searches if one.place is not None})
    return places


class _Search:
    """Searches for the first token of a request whose own step was not finite. A bisection works,
    because later tokens read its K/V and are not finite either."""

    def __init__(self, index: int, tokens: Ints, num_tokens: int) -> None:
        """Searches the first `num_tokens`; later, generated tokens had finite logits."""
        self.index = index
        self.tokens = tokens
        self.low, self.high = 0, num_tokens
        self.place: OpPlace | None = None

    @property
    def position(self) -> int:
        """Position of the token to check next."""
        return (self.low + self.high) // 2

    def narrow(self, place: OpPlace | None) -> None:
        """Records the result for the token at `position`."""
        if place is None:
            self.low = self.position + 1
        else:
            self.high, self.place = self.position, place


def _tokens_between(batch: StepBatch, searches: list[_Search]) -> StepBatch:
    """A step with the token that each search checks next."""
    positions = np.array([search.position for search in searches], np.int32)
    rows = np.arange(len(searches) + 1, dtype=np.int32)
    return StepBatch(
        token_ids=np.array([search.tokens[search.position] for search in searches], np.int32),
        positions=positions,
        seq_starts=rows,
        context_lens=positions + 1,
        block_tables=batch.block_tables[[search.index for search in searches]],
        logits_rows=rows[:-1],
        sampling=None,
        adapters=batch.adapters and [batch.adapters[search.index] for search in searches],
    )

"""`SamplingRows`: the sampling settings of the requests in the batch, as columns that persist.

Called by `InputBatch`; the columns of a step are gathered from here. Which there are and how they
follow from a request, `quire.sampling.columns` declares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.errors import IntegrityError
from quire.protocol import ScheduledRequest
from quire.sampling.columns import COLUMNS, SamplingColumns

Ints = NDArray[np.int32]

_OF_REQUESTS = {name: column for name, column in COLUMNS.items() if column.value is not None}
"""The columns that a request fills once, when it starts."""


@dataclass(slots=True)
class _Ban:
    """Tokens forbidden to a row until it has `until_num_tokens`."""

    until_num_tokens: int
    token_ids: Ints


class SamplingRows:
    """Columns over rows, and which of them anybody uses: an unused one is left out of the step."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._columns = {
            name: np.full(max_num_seqs, column.neutral or 0, column.dtype)
            for name, column in _OF_REQUESTS.items()
        }
        self._users: dict[str, set[int]] = {
            name: set() for name, column in _OF_REQUESTS.items() if column.neutral is not None
        }
        """The rows where a column is not neutral."""
        self._bans: dict[int, _Ban] = {}

    def set(self, row: int, request: ScheduledRequest) -> None:
        """Fills a row that is being started."""
        params = request.sampling_params
        if params.seed is None:
            raise IntegrityError(f"request {request.request_id} has no seed")
        for name, column in _OF_REQUESTS.items():
            value = column.value(params, self._vocab_size)  # type: ignore[misc]
            self._columns[name][row] = value
            if column.neutral is not None and value != column.neutral:
                self._users[name].add(row)
        until = request.num_prompt_tokens + params.min_tokens
        if request.banned_token_ids and len(request.token_ids) < until:
            self._bans[row] = _Ban(until, np.array(request.banned_token_ids, np.int32))

    def clear(self, row: int) -> None:
        """Forgets a row that is being released."""
        for users in self._users.values():
            users.discard(row)
        self._bans.pop(row, None)

    def num_logprobs(self, rows: Ints) -> Ints | None:
        """[L]; how many are wanted of each, -1 for none; None if no request wants any."""
        return self._columns["num_logprobs"][rows] if self._users["num_logprobs"] else None

    def columns(self, rows: Ints, num_tokens: Ints) -> SamplingColumns | None:
        """The columns for these rows [L], which hold `num_tokens` [L]; None if there are none."""
        if not len(rows):
            return None
        neutral = {name for name, users in self._users.items() if not users}
        columns = SamplingColumns(
            counters=num_tokens.astype(np.uint64),
            **{name: array[rows] for name, array in self._columns.items() if name not in neutral},
        )
        if self._bans:
            self._add_bans(columns, rows, num_tokens)
        return columns

    def _add_bans(self, columns: SamplingColumns, rows: Ints, num_tokens: Ints) -> None:
        starts = np.zeros(len(rows) + 1, np.int32)
        parts = []
        for index, (row, count) in enumerate(zip(rows.tolist(), num_tokens.tolist(), strict=True)):
            ban = self._bans.get(row)
            if ban is not None and count >= ban.until_num_tokens:
                del self._bans[row]
                ban = None
            if ban is not None:
                parts.append(ban.token_ids)
            starts[index + 1] = starts[index] + (0 if ban is None else len(ban.token_ids))
        if parts:
            columns.bias_starts = starts
            columns.bias_ids = np.concatenate(parts)
            columns.bias_values = np.full(len(columns.bias_ids), -np.inf, np.float32)

"""`SamplingRows`: the sampling settings of the requests held, as columns that persist.

Called by `InputBatch`; the columns of a step are gathered from here. What they mean is fixed
by `quire.sampling.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import SamplingColumns
from quire.errors import IntegrityError
from quire.params import GREEDY_BELOW
from quire.protocol import ScheduledRequest

Ints = NDArray[np.int32]


@dataclass(slots=True)
class _Ban:
    """Tokens forbidden to a row until it has `until_num_tokens`."""

    until_num_tokens: int
    token_ids: Ints


class SamplingRows:
    """Columns over rows, and which of them anybody uses: an unused one is left out of the step."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._temperature = np.ones(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int32)
        self._top_p = np.ones(max_num_seqs, np.float32)
        self._min_p = np.zeros(max_num_seqs, np.float32)
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._num_logprobs = np.full(max_num_seqs, -1, np.int32)
        self._users: dict[str, set[int]] = {
            name: set() for name in ("top_k", "top_p", "min_p", "logprobs")
        }
        self._bans: dict[int, _Ban] = {}

    def set(self, row: int, request: ScheduledRequest) -> None:
        """Fills a row that is being started."""
        params = request.sampling_params
        if params.seed is None:
            raise IntegrityError(f"request {request.request_id} has no seed")
        self._temperature[row] = 0 if params.temperature < GREEDY_BELOW else params.temperature
        self._top_k[row] = min(max(params.top_k, 0), self._vocab_size)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = np.uint64(params.seed % 2**64)
        wanted = params.num_logprobs
        if wanted is not None and not 0 <= wanted <= self._vocab_size:
            wanted = self._vocab_size
        self._num_logprobs[row] = -1 if wanted is None else wanted
        self._use("top_k", row, params.top_k > 0)
        self._use("top_p", row, params.top_p < 1)
        self._use("min_p", row, params.min_p > 0)
        self._use("logprobs", row, wanted is not None)
        until = request.num_prompt_tokens + params.min_tokens
        if request.banned_token_ids and len(request.token_ids) < until:
            self._bans[row] = _Ban(until, np.array(request.banned_token_ids, np.int32))

    def clear(self, row: int) -> None:
        """Forgets a row that is being released."""
        for users in self._users.values():
            users.discard(row)
        self._bans.pop(row, None)

    def num_logprobs(self, rows: Ints) -> Ints | None:
        """[L]; how many are wanted of each, -1 for none; None if nobody wants any."""
        return self._num_logprobs[rows] if self._users["logprobs"] else None

    def columns(self, rows: Ints, num_tokens: Ints) -> SamplingColumns | None:
        """The columns for these rows [L], which hold `num_tokens` [L]; None if there are none."""
        if not len(rows):
            return None
        users = self._users
        columns = SamplingColumns(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows] if users["top_k"] else None,
            top_p=self._top_p[rows] if users["top_p"] else None,
            min_p=self._min_p[rows] if users["min_p"] else None,
            seeds=self._seeds[rows],
            counters=num_tokens.astype(np.uint64),
            num_logprobs=self.num_logprobs(rows),
        )
        if self._bans:
            self._add_bans(columns, rows, num_tokens)
        return columns

    def _use(self, name: str, row: int, is_used: bool) -> None:
        if is_used:
            self._users[name].add(row)

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

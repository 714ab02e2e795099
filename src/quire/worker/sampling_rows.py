"""`SamplingRows`: the sampling settings of the requests in the batch, as persistent columns.

Called by `InputBatch`, which gathers the columns of a step from it. `quire.sampling.columns`
declares the columns and how a request fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quire.config.records import LogprobsMode
from quire.errors import IntegrityError
from quire.protocol import ScheduledRequest
from quire.sampling.columns import COLUMNS, LOGPROBS_KINDS, SamplingColumns
from quire.worker import row_choices
from quire.worker.row_choices import Drafts, Ints, Masks, Rows
from quire.worker.token_state import (
    FixedTokens,
    RecentTokens,
    SeenTokens,
    ThinkingBudget,
    Timestamps,
    TokenBias,
    TokenState,
    TokenTrace,
)

_OF_REQUESTS = {name: column for name, column in COLUMNS.items() if column.value is not None}
"""The columns that a request fills once, when it starts."""


def _allowed(request: ScheduledRequest) -> TokenState | None:
    ids = request.sampling_params.allowed_token_ids
    return None if ids is None else FixedTokens(ids)


def _reported(request: ScheduledRequest) -> TokenState | None:
    ids = request.sampling_params.logprob_token_ids
    return None if ids is None else FixedTokens(ids)


def _bias(request: ScheduledRequest) -> TokenState | None:
    params = request.sampling_params
    never = params.never_generated
    bans = request.banned_token_ids or params.bad_words_token_ids or never.words or never.first
    if bans or params.logit_bias:
        return TokenBias(request)
    return None


def _seen(request: ScheduledRequest) -> TokenState | None:
    params = request.sampling_params
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    if penalties == (1, 0, 0) or params.repeat_last_n == 0:
        return None
    return SeenTokens(request) if params.repeat_last_n is None else RecentTokens(request)


TOKEN_STATES: dict[str, Callable[[ScheduledRequest], TokenState | None]] = {
    "allowed": _allowed,
    "bias": _bias,
    "seen": _seen,
    "reported": _reported,
}
"""For each of `TOKEN_LISTS`, the function that creates the state of a request. It returns None if
the list is empty at every step."""


class SamplingRows:
    """Columns over rows. A column that no request uses is left out of the step."""

    def __init__(
        self, max_num_seqs: int, vocab_size: int, logprobs_mode: LogprobsMode = "raw_logprobs"
    ) -> None:
        self._vocab_size = vocab_size
        self._logprobs_kind = LOGPROBS_KINDS[logprobs_mode]
        self._columns = {
            name: np.full(max_num_seqs, column.neutral or 0, column.dtype)
            for name, column in _OF_REQUESTS.items()
        }
        self._users: dict[str, set[int]] = {
            name: set() for name, column in _OF_REQUESTS.items() if column.neutral is not None
        }
        """The rows where a column is not neutral."""
        self._states: dict[str, dict[int, TokenState]] = {name: {} for name in TOKEN_STATES}
        """For each list of tokens, the states by row."""
        self._forcing: dict[int, ThinkingBudget | TokenTrace] = {}
        """States of the rows whose next token may be forced, by row."""
        self._timestamps: dict[int, Timestamps] = {}
        """States of the rows with rules for timestamps, by row."""
        self._followed: list[Mapping[int, TokenState | ThinkingBudget | TokenTrace | Timestamps]]
        self._followed = [*self._states.values(), self._forcing, self._timestamps]
        """All states that are updated with each token."""
        self._gathered: tuple[Rows, dict[str, Any]] | None = None
        """The rows of the last step and their columns; None after a row was set or cleared."""

    def set(self, row: int, request: ScheduledRequest) -> None:
        """Fills a row that is being started."""
        self._gathered = None
        params = request.sampling_params
        if params.seed is None:
            raise IntegrityError(f"request {request.request_id} has no seed")
        for name, column in _OF_REQUESTS.items():
            value = column.value(params, self._vocab_size)  # type: ignore[misc]
            self._columns[name][row] = value
            if column.neutral is not None and value != column.neutral:
                self._users[name].add(row)
        for name, make in TOKEN_STATES.items():
            state = make(request)
            if state is not None:
                self._states[name][row] = state
        if params.thinking_token_budget is not None and request.reasoning is not None:
            self._forcing[row] = ThinkingBudget(request, request.reasoning)
        elif params.trace_decode_token_ids:
            self._forcing[row] = TokenTrace(request)
        if (rules := params.timestamps) is not None:
            self._timestamps[row] = Timestamps(request, rules, self._vocab_size)

    def clear(self, row: int) -> None:
        """Forgets a row that is being released."""
        self._gathered = None
        for users in self._users.values():
            users.discard(row)
        for states in self._states.values():
            states.pop(row, None)
        self._forcing.pop(row, None)
        self._timestamps.pop(row, None)

    def advance(self, rows: Rows, token_ids: Ints) -> None:
        """Takes in the next token of each of these rows [L]."""
        for states in self._followed:
            if not states:
                continue
            for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
                if (state := states.get(row)) is not None:
                    state.append(token_id)

    def num_logprobs(self, rows: Rows) -> Ints | None:
        """[L]; number of log-probabilities per row, -1 for none; None if no request wants any."""
        return self._columns["num_logprobs"][rows] if self._users["num_logprobs"] else None

    def columns(
        self,
        rows: Rows,
        num_tokens: Ints,
        chosen: Ints | None = None,
        masks: Mapping[int, Masks] | None = None,
        drafts: Drafts | None = None,
    ) -> SamplingColumns | None:
        """The columns for these rows [L], which have `num_tokens` [L] tokens; None without rows.
        `chosen` [L]: tokens that are already chosen; -1: the token is to be sampled. `masks`:
        allowed tokens, by row. `drafts`: draft tokens; a row occurs once more for each of them."""
        if not len(rows):
            return None
        lines = None if not masks else row_choices.lines_of(masks, rows, drafts)
        if self._timestamps:
            lines = row_choices.with_timestamps(self._timestamps, rows, lines)
        if self._forcing:
            chosen = row_choices.with_forced(self._forcing, rows, chosen, lines, drafts)
        columns = SamplingColumns(
            counters=num_tokens.astype(np.uint64), chosen=chosen, **self._gather(rows)
        )
        if self._logprobs_kind:
            columns.logprobs_kind = np.full(len(rows), self._logprobs_kind, np.int32)
        if lines is not None:
            columns.mask = row_choices.joined(lines, chosen)
        for name, states in self._states.items():
            if states:
                lists = row_choices.token_lists(states, rows, num_tokens, chosen, lines, drafts)
                setattr(columns, name, lists)
        return columns

    def _gather(self, rows: Rows) -> dict[str, Any]:
        """The columns that a request fills once, for these rows. Reuses those of the last step if
        it had the same array of rows."""
        if self._gathered is None or self._gathered[0] is not rows:
            unused = {name for name, users in self._users.items() if not users}
            used = {name: of[rows] for name, of in self._columns.items() if name not in unused}
            self._gathered = rows, used
        return self._gathered[1]

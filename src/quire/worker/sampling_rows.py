"""`SamplingRows`: the sampling settings of the requests in the batch, as persistent columns.

Called by `InputBatch`, which gathers the columns of a step from it. `quire.sampling.columns`
declares the columns and how a request fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.config.records import LogprobsMode
from quire.errors import IntegrityError
from quire.protocol import ScheduledRequest
from quire.sampling.columns import COLUMNS, LOGPROBS_KINDS, SamplingColumns
from quire.sampling.masks import MASK_BITS, TokenMasks
from quire.sampling.token_lists import TokenLists
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

Ints = NDArray[np.int32]
Masks = NDArray[np.uint32]
"""[1 + draft tokens of a row, words]; bits of the tokens that a grammar allows at each place."""
Lines = list[NDArray[np.uint32] | None]
"""[L]; None: every token is allowed."""
Rows = NDArray[np.intp]
"""Rows of the batch, in NumPy's index type: other types would be converted at each use."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """The draft tokens of a step."""

    token_ids: Mapping[int, list[int]]
    """Draft tokens by row."""
    offsets: Ints
    """[L]; how many draft tokens of the request precede each row of logits. Rows are in order of
    position."""

    def num_places(self, first: int) -> int:
        """Number of rows of logits of the request whose first row is at index `first`."""
        later = np.flatnonzero(self.offsets[first + 1 :] == 0)
        return int(later[0]) + 1 if len(later) else len(self.offsets) - first


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
        lines = None if not masks else _lines(masks, rows, drafts)
        if self._timestamps:
            lines = self._with_timestamps(rows, lines)
        if self._forcing:
            chosen = self._with_forced(rows, chosen, lines, drafts)
        columns = SamplingColumns(
            counters=num_tokens.astype(np.uint64), chosen=chosen, **self._gather(rows)
        )
        if self._logprobs_kind:
            columns.logprobs_kind = np.full(len(rows), self._logprobs_kind, np.int32)
        if lines is not None:
            open_lines = lines
            if chosen is not None:
                open_lines = [None if chosen[i] >= 0 else line for i, line in enumerate(lines)]
            if any(line is not None for line in open_lines):
                columns.mask = TokenMasks.join(open_lines)
        for name, states in self._states.items():
            if states:
                lists = self._lists(states, rows, num_tokens, chosen, lines, drafts)
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

    def _with_forced(
        self, rows: Rows, chosen: Ints | None, lines: Lines | None, drafts: Drafts | None
    ) -> Ints | None:
        """`chosen` with the forced tokens added: tokens of a trace, or tokens that end reasoning
        whose budget is used up. A grammar that includes the reasoning may delay the latter until a
        character is complete."""
        forced = chosen
        for index, _row, forcing in _along(self._forcing, rows, drafts):
            if chosen is not None and chosen[index] >= 0:
                continue
            token_id = forcing.forced()
            if token_id is None or not _allows(_line(lines, index), token_id):
                continue
            if forced is chosen:
                forced = np.full(len(rows), -1, np.int32) if chosen is None else chosen.copy()
            forced[index] = token_id  # type: ignore[index]
        return forced

    def _with_timestamps(self, rows: Rows, lines: Lines | None) -> Lines:
        """The masks of grammars, and those of rules for timestamps."""
        found: Lines = [None] * len(rows)
        if lines is not None:
            found = [*lines]
        for index, row in enumerate(rows.tolist()):
            if (state := self._timestamps.get(row)) is not None:
                own, line = state.mask(), found[index]
                found[index] = own if line is None else own & line
        return found

    def _lists(
        self,
        states: dict[int, TokenState],
        rows: Rows,
        num_tokens: Ints,
        chosen: Ints | None,
        lines: Lines | None,
        drafts: Drafts | None,
    ) -> TokenLists | None:
        """Lists of tokens for these rows; None: all are empty."""
        lists: list[tuple[Ints, NDArray[np.float32] | None] | None] = [None] * len(rows)
        is_used = False
        for index, row, state in _along(states, rows, drafts):
            if chosen is not None and chosen[index] >= 0:
                continue
            tokens = state.tokens(int(num_tokens[index]), _line(lines, index))
            if tokens is None:
                if states[row] is state:
                    del states[row]
            elif len(tokens[0]):
                lists[index] = tokens
                is_used = True
        return TokenLists.join(lists) if is_used else None


_State = TypeVar("_State", TokenState, ThinkingBudget | TokenTrace)


def _along(
    states: dict[int, _State], rows: Rows, drafts: Drafts | None
) -> Iterator[tuple[int, int, _State]]:
    """For each of the rows [L] that has a state: its index, the row, and the state after the draft
    tokens that precede it. The states in `states` are not changed."""
    current: dict[int, _State] = {}
    for index, row in enumerate(rows.tolist()):
        state = states.get(row)
        if state is None:
            continue
        if drafts is not None and (offset := int(drafts.offsets[index])):
            state = current[row].fork()
            state.append(drafts.token_ids[row][offset - 1])
        current[row] = state
        yield index, row, state


def _lines(masks: Mapping[int, Masks], rows: Rows, drafts: Drafts | None) -> Lines:
    """For each of the rows [L], the mask of the next token."""
    offsets = [0] * len(rows) if drafts is None else drafts.offsets.tolist()
    return [
        None if (of_row := masks.get(row)) is None else of_row[offset]
        for row, offset in zip(rows.tolist(), offsets, strict=True)
    ]


def _line(lines: Lines | None, index: int) -> NDArray[np.uint32] | None:
    return None if lines is None else lines[index]


def _allows(mask: NDArray[np.uint32] | None, token_id: int) -> bool:
    word, bit = divmod(token_id, MASK_BITS)
    return mask is None or bool(mask[word] >> bit & 1)

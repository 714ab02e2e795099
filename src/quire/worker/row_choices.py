"""Limits on what rows of a step choose: masks of grammars, rules for timestamps, forced tokens,
and lists of tokens.

Called by `SamplingRows` for rows that have a state. With draft tokens a request has several rows;
the state of each is that after the draft tokens before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.sampling.masks import MASK_BITS, TokenMasks
from quire.sampling.token_lists import TokenLists
from quire.worker.token_state import ThinkingBudget, Timestamps, TokenState, TokenTrace

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


def lines_of(masks: Mapping[int, Masks], rows: Rows, drafts: Drafts | None) -> Lines:
    """For each of the rows [L], the mask of the next token."""
    offsets = [0] * len(rows) if drafts is None else drafts.offsets.tolist()
    return [
        None if (of_row := masks.get(row)) is None else of_row[offset]
        for row, offset in zip(rows.tolist(), offsets, strict=True)
    ]


def with_timestamps(timestamps: Mapping[int, Timestamps], rows: Rows, lines: Lines | None) -> Lines:
    """The masks of grammars, and those of rules for timestamps."""
    found: Lines = [None] * len(rows)
    if lines is not None:
        found = [*lines]
    for index, row in enumerate(rows.tolist()):
        if (state := timestamps.get(row)) is not None:
            own, line = state.mask(), found[index]
            found[index] = own if line is None else own & line
    return found


def with_forced(
    forcing: dict[int, ThinkingBudget | TokenTrace],
    rows: Rows,
    chosen: Ints | None,
    lines: Lines | None,
    drafts: Drafts | None,
) -> Ints | None:
    """`chosen` with the forced tokens added: tokens of a trace, or tokens that end reasoning
    whose budget is used up. A grammar that includes the reasoning may delay the latter until a
    character is complete."""
    forced = chosen
    for index, _row, state in _along(forcing, rows, drafts):
        if chosen is not None and chosen[index] >= 0:
            continue
        token_id = state.forced()
        if token_id is None or not _allows(_line(lines, index), token_id):
            continue
        if forced is chosen:
            forced = np.full(len(rows), -1, np.int32) if chosen is None else chosen.copy()
        forced[index] = token_id  # type: ignore[index]
    return forced


def joined(lines: Lines, chosen: Ints | None) -> TokenMasks | None:
    """The masks of the rows whose token is not chosen yet; None: they have none."""
    if chosen is not None:
        lines = [None if chosen[i] >= 0 else line for i, line in enumerate(lines)]
    return TokenMasks.join(lines) if any(line is not None for line in lines) else None


def token_lists(
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


def _line(lines: Lines | None, index: int) -> NDArray[np.uint32] | None:
    return None if lines is None else lines[index]


def _allows(mask: NDArray[np.uint32] | None, token_id: int) -> bool:
    word, bit = divmod(token_id, MASK_BITS)
    return mask is None or bool(mask[word] >> bit & 1)

"""What is allowed and added at each step of a request, also of one that starts again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from quire.params import SamplingParams
from quire.protocol import ScheduledRequest
from quire.sampling.columns import TOKEN_LISTS
from quire.worker.sampling_rows import TOKEN_STATES
from quire.worker.token_state import TokenState

PROMPT = [1, 2, 3]


def started(output: list[int], banned: list[int] | None = None, **params: object
            ) -> ScheduledRequest:  # fmt: skip
    words = params.pop("words", None)
    settings = SamplingParams(seed=1, **params)  # type: ignore[arg-type]
    settings._bad_words_token_ids = words  # type: ignore[assignment]
    return ScheduledRequest(
        request_id="a",
        token_ids=PROMPT + output,
        num_prompt_tokens=len(PROMPT),
        sampling_params=settings,
        block_ids=[[0]],
        first_entries=[0],
        num_computed_tokens=0,
        banned_token_ids=banned or [],
    )


def at(state: TokenState, num_output: int) -> dict[int, float] | None:
    tokens = state.tokens(len(PROMPT) + num_output)
    if tokens is None:
        return None
    ids, values = tokens
    assert values is not None
    assert (ids.dtype, values.dtype) == (np.int32, np.float32)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def test_a_request_that_says_nothing_has_no_state() -> None:
    assert [make(started([])) for make in TOKEN_STATES.values()] == [None] * len(TOKEN_STATES)


def test_allowed_tokens_are_the_same_at_every_step() -> None:
    state = TOKEN_STATES["allowed"](started([], allowed_token_ids=[9, 7]))
    assert state is not None
    for count in (3, 4, 90):
        tokens = state.tokens(count)
        assert tokens is not None
        assert (tokens[0].tolist(), tokens[1]) == ([9, 7], None)
        state.append(9)


def test_bans_until_min_tokens_are_off_where_a_grammar_allows_nothing_else() -> None:
    state = TOKEN_STATES["bias"](started([], banned=[3, 40], min_tokens=2, logit_bias={1: 2.0}))
    assert state is not None

    def ids(allowed: list[int], count: int) -> list[int]:
        mask = np.zeros(2, np.uint32)
        for token_id in allowed:
            mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        tokens = state.tokens(len(PROMPT) + count, mask)
        assert tokens is not None
        return tokens[0].tolist()

    assert ids([3, 5], 0) == [1, 3, 40]
    assert ids([3], 0) == ids([3, 40], 1) == [1]
    assert ids([5], 1) == [1, 3, 40]
    assert ids([5], 2) == [1]


WORDS = [[5], [6, 7], [8, 7, 9], [4, 9]]
BAN = -np.inf


def test_a_bad_word_is_not_completed_and_a_ban_ends() -> None:
    request = started([], [20, 21], logit_bias={5: 1.0, 3: 2.5}, min_tokens=2, words=WORDS)
    state = TOKEN_STATES["bias"](request)
    assert state is not None
    always = {5: BAN, 3: 2.5}
    for output, banned in [
        ([], [20, 21]),
        ([6], [20, 21, 7]),
        ([6, 8], []),
        ([6, 8, 7], [9]),  # as many tokens as a word has before its last
        ([6, 8, 7, 7], []),
        ([6, 8, 7, 7, 4], [9]),
    ]:
        if output:
            state.append(output[-1])
        wanted = {**always, **dict.fromkeys(banned, BAN)}
        assert at(state, len(output)) == wanted, output
        again = TOKEN_STATES["bias"](
            started(output, [20, 21], logit_bias={5: 1.0, 3: 2.5}, min_tokens=2, words=WORDS)
        )
        assert again is not None
        assert at(again, len(output)) == wanted, "after a preemption"


def test_a_bias_that_is_over_says_so() -> None:
    state = TOKEN_STATES["bias"](started([], [20], min_tokens=1))
    assert state is not None
    assert at(state, 0) == {20: BAN}
    assert at(state, 1) is None


def test_bad_words_are_looked_for_in_the_output_alone() -> None:
    state = TOKEN_STATES["bias"](started([], words=[[3, 4]]))
    assert state is not None
    assert at(state, 0) == {}
    state.append(3)
    assert at(state, 1) == {4: BAN}


@pytest.mark.parametrize(
    ("penalties", "prompt"),
    [
        ({"repetition_penalty": 1.1}, PROMPT),
        ({"frequency_penalty": 0.5}, []),
        ({"presence_penalty": -0.5}, []),
        ({"repetition_penalty": 0.9, "presence_penalty": 1.0}, PROMPT),
    ],
)
def test_seen_tokens_are_counted_one_by_one_or_anew(
    penalties: dict[str, float], prompt: list[int]
) -> None:
    output = np.random.default_rng(1).integers(0, 150, 400).tolist()
    state = TOKEN_STATES["seen"](started([], **penalties))
    assert state is not None
    for count in range(len(output) + 1):
        if count:
            state.append(output[count - 1])
        if count % 40:
            continue
        wanted = {**dict.fromkeys(prompt, 0.0), **Counter(output[:count])}
        assert at(state, count) == wanted
        again = TOKEN_STATES["seen"](started(output[:count], **penalties))
        assert again is not None
        assert at(again, count) == wanted, "after a preemption"


@pytest.mark.parametrize("window", [0, 1, 3, 4, 99, -1])
def test_penalties_look_at_the_last_tokens_also_of_the_prompt(window: int) -> None:
    fields = {"frequency_penalty": 0.5, "repeat_last_n": window}
    output = [3, 9, 9, 3, 3, 8]
    state = TOKEN_STATES["seen"](started([], **fields))
    assert (state is None) == (window == 0)
    for count, token_id in enumerate(output if state is not None else [], 1):
        assert state is not None
        twin = state.fork()
        before = at(twin, count)
        state.append(token_id)
        known = [*PROMPT, *output[:count]]
        wanted = Counter(known if window == -1 else known[-window:])
        assert at(state, count) == wanted
        assert at(twin, count) == before
        anew = TOKEN_STATES["seen"](started(output[:count], **fields))
        assert anew is not None
        assert at(anew, count) == wanted


def test_there_is_a_state_for_each_list_of_the_columns() -> None:
    assert TOKEN_STATES.keys() == TOKEN_LISTS.keys()

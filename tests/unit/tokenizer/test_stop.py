"""`StopChecker` against the plain definition, over every way of cutting a text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from quire.tokenizer import StopChecker

letters = st.text("ab<", max_size=30)
stops = st.lists(st.text("ab<", min_size=1, max_size=5), max_size=4)


def expected(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The stop string that is complete after the fewest characters, first in the list if equal."""
    for end in range(1, len(text) + 1):
        for each in stop:
            if text[:end].endswith(each):
                return text[: end if include else end - len(each)], each
    return text, None


@given(text=letters, stop=stops, include=st.booleans(), cuts=st.lists(st.integers(1, 4)))
@settings(max_examples=examples(500), deadline=None)
def test_cuts_where_the_first_stop_string_is_complete(
    text: str, stop: list[str], include: bool, cuts: list[int]
) -> None:
    checker = StopChecker(stop, include_stop_str_in_output=include)
    wanted, matched = expected(text, stop, include)
    shown, begin = "", 0
    for size in [*cuts, len(text)]:
        shown += checker.feed(text[begin : begin + size])
        begin += size
        assert wanted.startswith(shown)
        if checker.matched is None and stop:
            pending = text[len(shown) : begin]
            assert pending == "" or any(each.startswith(pending) for each in stop)
    shown += checker.finish()
    assert (shown, checker.matched) == (wanted, matched)


def test_below_min_tokens_a_stop_string_does_not_count() -> None:
    checker = StopChecker(["END"])
    assert checker.feed("x END y E", may_stop=False) == "x END y "
    assert checker.feed("N", may_stop=False) == ""
    assert checker.feed("D z") == "E"[:0]
    assert checker.matched == "END"


def test_a_stop_string_that_ends_within_the_unchecked_part_stays_text() -> None:
    checker = StopChecker(["abc", "b"])
    assert checker.feed("ab", may_stop=False) == ""
    assert checker.feed("x") == "abx"
    assert checker.feed("b") == ""
    assert checker.matched == "b"


@pytest.mark.parametrize("include", [True, False])
def test_nothing_follows_a_match(include: bool) -> None:
    checker = StopChecker(["\n\n"], include_stop_str_in_output=include)
    assert checker.feed("a\n") == "a"
    assert checker.feed("\nb") == ("\n\n" if include else "")
    assert checker.feed("more") == ""
    assert checker.finish() == ""


def test_without_stop_strings_everything_passes() -> None:
    checker = StopChecker([])
    assert checker.feed("anything") == "anything"
    assert checker.finish() == ""
    assert checker.matched is None

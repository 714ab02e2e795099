"""Prompt lookup finds what a search of the whole text finds."""

from __future__ import annotations

import random

from quire.scheduler.drafting.ngram import Match, NgramIndex, continuation


def searched(text: list[int], n: int) -> Match | None:
    """The longest match among the sixteen newest ones, by comparing everything."""
    end, found = len(text), []
    for place in range(end - 1, n - 1, -1):
        length = 0
        while length < min(place, 32) and text[place - 1 - length] == text[end - 1 - length]:
            length += 1
        if length >= n:
            found.append(Match(place, length))
    return max(found[:16], key=lambda match: match.length, default=None)


def test_it_finds_what_a_search_finds() -> None:
    chance = random.Random(3)
    for n in (1, 2, 3, 5):
        for num_kinds in (1, 2, 4):
            index, text = NgramIndex(n), list[int]()
            for _ in range(120):
                text += [chance.randrange(num_kinds) for _ in range(chance.randrange(1, 4))]
                index.extend(text)
                assert index.longest_match(text, text) == searched(text, n), (n, text)


def test_a_short_text_has_no_match() -> None:
    index = NgramIndex(3)
    for text in ([], [1], [1, 1], [1, 1, 1]):
        index.extend(text)
        assert index.longest_match(text, text) is None


def test_a_continuation_repeats_what_has_an_end() -> None:
    text = [9, 1, 2, 3, 1, 2, 3]
    assert continuation(text, 4, 2) == [1, 2]
    assert continuation(text, 4, 7) == [1, 2, 3, 1, 2, 3, 1]

"""Outputs that end in copies of a pattern, against a search in text."""

from __future__ import annotations

import random
import re

import pytest

from quire.repetition import RepetitionDetectionParams, is_repeating


@pytest.mark.parametrize(
    ("output", "detection", "wanted"),
    [
        ("aaa", (1, 0, 3), True),
        ("aa", (1, 0, 3), False),
        ("baaa", (1, 1, 3), True),
        ("aaab", (1, 0, 3), False),
        ("abcabc", (3, 0, 2), True),
        ("abcabc", (2, 0, 2), False),
        ("abcabc", (9, 4, 2), False),
        ("aaaaaa", (9, 2, 2), True),
        ("abab", (0, 0, 0), False),
        ("", (3, 0, 2), False),
    ],
)
def test_patterns(output: str, detection: tuple[int, int, int], wanted: bool) -> None:
    params = RepetitionDetectionParams(*detection)
    prompt = [ord("a")] * 20
    token_ids = [*prompt, *map(ord, output)]
    assert is_repeating(token_ids, len(output), params) is wanted


def test_any_text() -> None:
    choose = random.Random(1)
    for _ in range(3000):
        text = "".join(choose.choices("ab", k=choose.randint(1, 14)))
        least, most = sorted(choose.choices(range(1, 6), k=2))
        count = choose.randint(2, 4)
        wanted = re.search(rf"(.{{{least},{most}}})\1{{{count - 1}}}$", text) is not None
        params = RepetitionDetectionParams(most, least, count)
        assert is_repeating([*map(ord, text)], len(text), params) is wanted, (text, params)

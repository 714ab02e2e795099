"""Where the reasoning of a reply begins and ends in its tokens."""

from __future__ import annotations

import pytest

from quire.errors import ConfigError
from quire.planning.reasoning_marks import reasoning_marks
from quire.reasoning.marks import ReasoningMarks, ReasoningPassage, ReasoningTokens

MARKS = ReasoningMarks("<a>", "</a>", forced_end="so</a>")


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


def tokens_of(prompt: str, marks: ReasoningMarks = MARKS) -> ReasoningTokens:
    return ReasoningTokens.of(marks, ids(prompt), ids)


def passage(prompt: str, reply: str, marks: ReasoningMarks = MARKS) -> ReasoningPassage:
    found = ReasoningPassage(tokens_of(prompt, marks), ids(prompt + reply), len(prompt))
    one_by_one = ReasoningPassage(tokens_of(prompt, marks), ids(prompt), len(prompt))
    for token_id in ids(reply):
        one_by_one.extend([token_id])
    assert found.is_open == one_by_one.is_open
    return found


@pytest.mark.parametrize(
    ("prompt", "reply", "is_open"),
    [
        ("", "", False),
        ("x<a>", "", True),
        ("x<a>y", "z", True),
        ("<a>y</a>", "z", False),
        ("</a><a>", "z", True),
        ("x", "<a", False),
        ("x", "<a>", True),
        ("x", "<a>y</a", True),
        ("x", "<a>y</a>", False),
        ("<a>", "y</a>z", False),
        ("<a>", "y</a>z<a>", True),
        ("<a>y<", "/a>", False),
        ("<", "a>", True),
    ],
)
def test_open(prompt: str, reply: str, is_open: bool) -> None:
    assert passage(prompt, reply).is_open == is_open


@pytest.mark.parametrize(
    ("prompt", "reply", "budget", "forced"),
    [
        ("<a>", "", 0, "s"),
        ("<a>", "", 1, None),
        ("<a>", "y", 1, "s"),
        ("<a>y", "", 1, "s"),
        ("<a>", "ys", 1, "o"),
        ("<a>", "yso</", 1, "a"),
        ("<a>", "yso</a>", 1, None),
        ("x", "yyyy", 1, None),
        ("x", "<a>yy", 2, "s"),
        ("<a>y", "</a>", 0, None),
        ("<a>y", "so!", 0, "s"),
    ],
)
def test_forced_tokens(prompt: str, reply: str, budget: int, forced: str | None) -> None:
    found = passage(prompt, reply).forced(budget)
    assert found == (None if forced is None else ord(forced))


def test_what_is_known_of_the_prompt_overrides_its_tokens() -> None:
    assert passage("x", "", ReasoningMarks("<a>", "</a>", is_open=True)).is_open
    assert not passage("<a>", "", ReasoningMarks("<a>", "</a>", is_open=False)).is_open


@pytest.mark.parametrize(
    ("prompt", "is_closed"),
    [("x", False), ("<a>", False), ("<a></a>", True), ("<a></a>\n\n", True), ("</a>words", False)],
)
def test_closed_by_the_prompt(prompt: str, is_closed: bool) -> None:
    assert tokens_of(prompt).is_closed == is_closed


@pytest.mark.parametrize(
    ("given", "parser", "marks"),
    [
        (None, "", None),
        ({}, "none", None),
        (None, "qwen3", ReasoningMarks("<think>", "</think>")),
        ({"reasoning_parser": "mistral"}, "", ReasoningMarks("[THINK]", "[/THINK]")),
        (
            {"reasoning_end_str": "Stop.</think>"},
            "qwen3",
            ReasoningMarks("<think>", "</think>", forced_end="Stop.</think>"),
        ),
        (
            {"reasoning_start_str": "(", "reasoning_end_str": ")"},
            "",
            ReasoningMarks("(", ")", forced_end=")"),
        ),
    ],
)
def test_marks_of_the_options(
    given: dict[str, str] | None, parser: str, marks: ReasoningMarks | None
) -> None:
    assert reasoning_marks(given, parser) == marks


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reasoning_start": "<"}, "did you mean reasoning_start_str"),
        ({"reasoning_start_str": 3}, "must be a string"),
        ({"reasoning_start_str": "<"}, "must have reasoning_end_str"),
        ({"reasoning_end_str": ">"}, "must have reasoning_start_str"),
        ({"reasoning_parser": "qwen4"}, "did you mean qwen3"),
        ({"reasoning_parser": "qwen3", "reasoning_end_str": "."}, "must end with </think>"),
    ],
)
def test_wrong_options(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reasoning_marks(given, "")

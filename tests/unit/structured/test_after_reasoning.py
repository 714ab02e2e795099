"""A grammar that begins after the reasoning: what may come before it, and that it holds then."""

from __future__ import annotations

import pytest
from grammar_jobs import AtOnce, followed
from small_vocabulary import allowed, ids, source

from quire.reasoning.marks import ReasoningPassage, ReasoningTokens
from quire.structured.compile import GrammarCompiler
from quire.structured.manager import StructuredOutputManager
from quire.structured.params import StructuredOutputsParams

IDS = ids()
CHOICE = StructuredOutputsParams(choice=["yes", "no"])
ANY = "any"
FIRST: set[str | int] = {"y", "ye", "yes", "n", "no"}


def follow(
    prompt: list[str],
    replies: list[list[str]],
    begin: tuple[str, ...] = ("x",),
    spec: StructuredOutputsParams = CHOICE,
    *,
    opened_at: int | None = None,
    is_closed: bool = False,
) -> list[object]:
    """What is allowed before each of these pieces of a reply, and at the end."""
    manager = StructuredOutputManager(GrammarCompiler(source), AtOnce())
    end = [IDS["e"], IDS["s"]]
    marks = ReasoningTokens([IDS[text] for text in begin], end, end, opened_at, is_closed=is_closed)
    prompt_ids = [IDS[text] for text in prompt]
    manager.add("a", spec, passage=ReasoningPassage(marks, prompt_ids, len(prompt_ids)))
    while not manager.take_news(60.0):
        pass
    found: list[object] = []
    for piece in [*replies, None]:
        mask = manager.masks(["a"]).get("a")
        found.append(ANY if mask is None else allowed(mask))
        if piece is not None:
            followed(manager, "a", [IDS[text] for text in piece])
    news = manager.take_news(0.0)
    assert not news, news
    return found


def test_prompt_that_ends_within_the_reasoning() -> None:
    found = follow(["x"], [["a"], ["e"], ["s"], ["n"]], opened_at=1)
    assert found == [ANY, ANY, ANY, FIRST, {"o"}]


def test_end_and_begin_of_the_answer_in_one_piece() -> None:
    assert follow(["x"], [["a", "e", "s", "n"]], opened_at=1) == [ANY, {"o"}]


def test_prompt_that_ends_after_the_reasoning() -> None:
    assert follow(["x", "e", "s"], [["n"]], is_closed=True) == [FIRST, {"o"}]


def test_reply_that_begins_with_the_reasoning() -> None:
    found = follow(["a"], [["x"], ["y"], ["e", "s"], ["yes"]])
    assert found[:4] == [FIRST | {"x"}, ANY, ANY, FIRST]
    assert found[4] == {"<eos>", "<end>"}


def test_reply_that_begins_with_the_answer() -> None:
    assert follow(["a"], [["n"], ["o"]]) == [FIRST | {"x"}, {"o"}, {"<eos>", "<end>"}]


def test_begin_of_several_tokens_that_the_grammar_allows_too() -> None:
    begin = ("n", "x")
    assert follow(["a"], [["n"], ["x"], ["a"]], begin) == [FIRST, {"o", "x"}, ANY, ANY]
    assert follow(["a"], [["n"], ["o"]], begin) == [FIRST, {"o", "x"}, {"<eos>", "<end>"}]


def test_begin_of_several_tokens_that_the_grammar_does_not_allow() -> None:
    begin = ("a", "x")
    assert follow(["y"], [["a"], ["x"]], begin) == [FIRST | {"a"}, {"x"}, ANY]


def test_tokens_are_forced_only_after_the_reasoning() -> None:
    manager = StructuredOutputManager(GrammarCompiler(source), AtOnce())
    end = [IDS["e"]]
    marks = ReasoningTokens([IDS["a"], IDS["x"]], end, end)
    manager.add("a", CHOICE, passage=ReasoningPassage(marks, [IDS["y"]], 1))
    while not manager.take_news(60.0):
        pass
    assert followed(manager, "a", [IDS["a"]]) == []
    assert followed(manager, "a", [IDS["x"]]) == []
    assert manager.masks(["a"]) == {}
    assert followed(manager, "a", [IDS["n"]]) == []
    assert followed(manager, "a", [IDS["e"], IDS["n"]])[:1] == [IDS["o"]]


@pytest.mark.parametrize("reply", [["x", "no"], ["x"], ["x", "e"]])
def test_reasoning_that_does_not_end_is_free(reply: list[str]) -> None:
    assert follow(["a"], [[text] for text in reply])[-1] == ANY

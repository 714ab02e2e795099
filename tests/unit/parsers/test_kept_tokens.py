"""Which special tokens a text keeps: the marks of the format, and no others."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fakes.trained_tokenizers import byte_level
from tokenizers import AddedToken

from quire.parsers.format import ReplyFormat
from quire.parsers.kept_tokens import kept_token_ids
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.tool_formats.hermes import HermesCalls
from quire.tokenizer import Tokenizer

FORMAT = ReplyFormat(ReasoningTags("<think>", "</think>"), HermesCalls())


def kept(special: Iterable[str], ordinary: Iterable[str], *, has_tools: bool = True) -> list[str]:
    built = byte_level()
    built.add_special_tokens([*special])
    built.add_tokens([AddedToken(text, special=False) for text in ordinary])
    tokenizer = Tokenizer(built, {})
    ids = kept_token_ids(FORMAT, tokenizer, has_tools=has_tools)
    return [tokenizer.token_text(token_id) for token_id in ids]


def test_marks_are_kept() -> None:
    marks = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    assert kept(marks, []) == marks
    assert kept(marks, [], has_tools=False) == ["<think>", "</think>"]
    assert kept(["<tool_response>"], marks) == []


def test_a_mark_may_have_a_special_token_in_it() -> None:
    assert kept(["tool_call", "name"], []) == ["tool_call", "name"]

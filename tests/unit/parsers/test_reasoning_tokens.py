"""Tokens of reasoning: those whose text is told as reasoning, whatever tokens the tags are."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.parsers.reasoning_tags import ReasoningTokenCount
from quire.parsers.registry import REASONING_FORMATS
from quire.parsers.tool_formats.hermes import HermesCalls
from quire.tokenizer import Tokenizer, detokenizer_of

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def byte_tokenizer(*added: str) -> Tokenizer:
    """A token for each byte, and these."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust = RustTokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_tokens([AddedToken(text, special=False) for text in added])
    return Tokenizer(rust, {})


def counted(tokenizer: Tokenizer, parts: list[list[int]], *, is_reasoning: bool) -> int:
    parser = ReplyParser(
        ReplyFormat(REASONING_FORMATS["qwen3"], HermesCalls()),
        {"f": {}},
        is_reasoning=is_reasoning,
    )
    text = detokenizer_of(tokenizer, [])
    count = ReasoningTokenCount(detokenizer_of(tokenizer, []))
    for part in parts:
        parser.feed(text.push(part))
        count.push(part)
    parser.feed(text.finish())
    parser.finish()
    return count.count(parser.reasoning_spans)


@pytest.mark.parametrize("added", [(), ("<think>", "</think>")])
@pytest.mark.parametrize(
    ("text", "is_reasoning", "num_tokens"),
    [
        ("<think>abc</think>def", False, 3),
        ("<think>\nabc\n</think>\n\ndef", False, 5),
        ("abc</think>def", True, 3),
        ("<think>abc</think>def", True, 3),
        ("<think>abc", False, 3),
        ("<think>\u20ac\U0001f600</think>def", False, 7),
        ("abc", False, 0),
        ("", True, 0),
        ("<think></think>abc", False, 0),
        ("</thin", True, 6),
        (f"ab{CALL}c", True, 2),
        ("ab<tool_call>c</think>d", True, 14),
        ('<tool_call>{"</think>d', True, 13),
    ],
)
def test_count(added: tuple[str, ...], text: str, is_reasoning: bool, num_tokens: int) -> None:
    tokenizer = byte_tokenizer(*added)
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = counted(tokenizer, [ids], is_reasoning=is_reasoning)
    assert whole == num_tokens
    for size in (1, 2, 3, 7):
        parts = [ids[i : i + size] for i in range(0, len(ids), size)]
        assert counted(tokenizer, parts, is_reasoning=is_reasoning) == whole


def test_token_that_begins_in_the_reasoning_and_ends_in_the_tag() -> None:
    tokenizer = byte_tokenizer("b</th")
    ids = tokenizer.encode("ab</think>c", add_special_tokens=False)
    assert len(ids) == 7
    assert counted(tokenizer, [ids], is_reasoning=True) == 2

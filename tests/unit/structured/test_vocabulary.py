"""Tokens in grammars: special ones stand for themselves, all others for their text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from small_vocabulary import allowed, ids, source
from tests.fakes.trained_tokenizers import byte_fallback, byte_level, word_level
from texts import checked_grammar
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from quire.errors import GrammarError, RequestError
from quire.structured import vocabulary
from quire.structured.compile import GrammarCompiler
from quire.structured.matcher import GrammarMatcher, only_token
from quire.structured.params import StructuredOutputsParams
from quire.structured.vocabulary import VocabularySource
from quire.tokenizer import Tokenizer as OwnTokenizer
from quire.tokenizer.for_model import source_of

IDS = ids()
END = {"<eos>", "<end>"}


def start(read: Callable[[], VocabularySource] = source, **spec: Any) -> GrammarMatcher:
    compiler = GrammarCompiler(read)
    return compiler.submit(StructuredOutputsParams(**spec)).result().start.copy()


def tag(part: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": part})


def test_a_token_that_is_not_special_is_text() -> None:
    matcher = start(choice=["<call>", "<cat"])
    assert allowed(matcher.mask) == {"<", "<call>"}
    matcher.advance([IDS["<call>"]])
    assert allowed(matcher.mask) == END
    matcher = start(choice=["<call>"])
    assert allowed(matcher.mask) == {"<call>"}
    matcher.advance([IDS[text] for text in "<call>"])
    assert allowed(matcher.mask) == END


def test_a_text_that_looks_like_a_special_token_is_spelled() -> None:
    matcher = start(choice=["a<|call|>"])
    for text in "a<|call|>":
        assert allowed(matcher.mask) == {text}
        matcher.advance([IDS[text]])
    assert allowed(matcher.mask) == END


def test_a_literal_part_is_cut_at_special_tokens() -> None:
    part = {"type": "const_string", "value": "a<|call|>b<call>"}
    matcher = start(structural_tag=tag(part))
    for text in ("a", "<|call|>", "b", "<call>"):
        assert allowed(matcher.mask) == {text}
        matcher.advance([IDS[text]])
    assert allowed(matcher.mask) == END


def test_a_free_text_ends_at_a_special_token_and_has_no_other() -> None:
    part = {
        "type": "triggered_tags",
        "triggers": ["<|call|>"],
        "tags": [{"begin": "<|call|>x", "content": {"type": "any_text"}, "end": "<|call|>"}],
    }
    matcher = start(structural_tag=tag(part))
    assert {"a", "<call>", "<", "<|call|>", *END} <= allowed(matcher.mask)
    spelled = matcher.copy()
    spelled.advance([IDS[text] for text in "a<|call|"])
    assert ">" not in allowed(spelled.mask)
    matcher.advance([IDS["a"], IDS["<"], IDS["<|call|>"]])
    assert allowed(matcher.mask) == {"x"}
    matcher.advance([IDS["x"], IDS["y"]])
    assert "<|call|>" in allowed(matcher.mask)
    assert not END & allowed(matcher.mask)
    matcher.advance([IDS["<|call|>"]])
    assert {"a", "<|call|>", *END} <= allowed(matcher.mask)


def test_a_marker_with_a_special_token_in_its_middle() -> None:
    part = {
        "type": "triggered_tags",
        "triggers": ["to<|call|>"],
        "tags": [{"type": "const_string", "value": "to<|call|>x"}],
    }
    matcher = start(structural_tag=tag(part))
    matcher.advance([IDS["t"]])
    assert "<|call|>" not in allowed(matcher.mask)
    matcher.advance([IDS["t"], IDS["o"]])
    assert "<|call|>" in allowed(matcher.mask)
    matcher.advance([IDS["<|call|>"]])
    assert allowed(matcher.mask) == {"x"}


@pytest.mark.parametrize("token", ["<|call|>", "<call>"])
def test_a_grammar_may_name_any_added_token(token: str) -> None:
    matcher = start(grammar=f'start: x {token} // {token}\nx: "<call>" | /<call>b/')
    matcher.advance([IDS["<call>"]])
    assert token in allowed(matcher.mask)
    matcher.advance([IDS[token]])
    assert allowed(matcher.mask) == END


def test_what_is_no_added_token_is_known_before_the_engine() -> None:
    checked_grammar(grammar='start: <plain> <tool> "a"')
    with pytest.raises(RequestError, match="unknown special token"):
        checked_grammar(grammar="start: <other>")
    checked_grammar(structural_tag=tag({"type": "const_string", "value": "<tool>[CALL]"}))


@pytest.mark.parametrize("built", [byte_level(), byte_fallback(), byte_fallback(strip=False)])
def test_texts_of_trained_tokenizers(built: Tokenizer) -> None:
    built.add_special_tokens(["<|x|>"])
    built.add_tokens(
        [AddedToken("  ", special=False), AddedToken("<y>", special=False, normalized=False)]
    )
    tokenizer = OwnTokenizer(built, {"eos_token": "<|x|>"}, {})
    read = source_of(tokenizer, built.get_vocab_size() + 8, ())
    text = ' a  b<|x|>{"<y>é😀 "</s> <|im_end|>\n'
    matcher = start(lambda: read, choice=[text])
    chosen: list[int] = []
    while (token_id := only_token(matcher.mask)) is not None and token_id != read.eos_token_ids[0]:
        chosen.append(token_id)
        matcher.advance([token_id])
    pieces = tokenizer.pieces
    assert pieces is not None
    assert b"".join(map(pieces.piece_bytes, chosen)) == text.encode()
    assert built.token_to_id("<y>") in chosen
    assert not tokenizer.special_token_ids & {*chosen}


@pytest.mark.parametrize("built", [byte_level(), byte_fallback(), byte_fallback(strip=False)])
def test_texts_are_cut_as_the_library_cuts_them(built: Tokenizer) -> None:
    tokenizer = OwnTokenizer(built, {"eos_token": "</s>"}, {})
    read = source_of(tokenizer, built.get_vocab_size(), (1,))
    whole = vocabulary._whole(read, [1])
    if vocabulary._keeps_texts(read):
        for text in (*vocabulary._TEXTS, '{"name": "é😀"', "  two  spaces\n\n", "12.5e-3}"):
            assert read.encode(text) == whole.tokenize_str(text)


def test_a_tokenizer_that_puts_a_space_before_texts_is_read_by_the_library() -> None:
    built = byte_level()
    assert vocabulary._keeps_texts(source_of(OwnTokenizer(built, {}, {}), 999, (1,)))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not vocabulary._keeps_texts(source_of(OwnTokenizer(built, {}, {}), 999, (1,)))


def test_a_tokenizer_whose_tokens_are_no_bytes_is_an_error() -> None:
    tokenizer = OwnTokenizer(word_level(), {}, {})
    read = source_of(tokenizer, 1000, (1,))
    with pytest.raises(GrammarError, match="do not work with this model's tokenizer"):
        start(lambda: read, choice=["a"])

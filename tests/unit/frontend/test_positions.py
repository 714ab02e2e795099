"""The text of tokens that spell a character together: empty until it is whole, in both forms."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_tokenizers import byte_fallback, byte_level, metaspace

from quire.frontend.logprob_positions import Positions
from quire.params import SamplingParams
from quire.protocol import TokenLogprobs
from quire.tokenizer import Tokenizer

KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "metaspace": metaspace}


@lru_cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(KINDS[kind](), {})


def texts_of(
    tokenizer: Tokenizer, ids: list[int], *, is_flat: bool, is_prompt: bool, detokenize: bool = True
) -> list[str | None]:
    """The text of each token but a prompt's first."""
    params = SamplingParams(logprobs=1, flat_logprobs=is_flat, detokenize=detokenize)
    positions = Positions(tokenizer, params, ids[:1] if is_prompt else ())
    if is_prompt:
        positions.add_nothing()
        ids = ids[1:]
    positions.add(TokenLogprobs([each], [-1.0], [1]) for each in ids)
    return [entry[each].decoded_token for each, entry in zip(
        ids, [entry for entry in positions.entries if entry], strict=True
    )]  # fmt: skip


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@given(text=st.text("a é你😀\U0001f468", max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_texts_of_all_tokens_are_the_text(kind: str, is_flat: bool, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    for is_prompt in (False, True) if ids else (False,):
        texts = texts_of(tokenizer, ids, is_flat=is_flat, is_prompt=is_prompt)
        if is_prompt:
            texts.insert(0, tokenizer.text_after(ids[0], []))
        assert "".join(each or "" for each in texts).strip() == text.strip()
        assert not any("\ufffd" in (each or "") for each in texts)


@pytest.mark.parametrize("is_flat", [False, True])
def test_a_character_comes_with_its_last_byte(is_flat: bool) -> None:
    tokenizer = tokenizer_of("byte_fallback")
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "😀é".encode()]
    assert None not in ids
    known = [each for each in ids if each is not None]
    shown = ["", "", "", "😀", "", "é"]
    assert texts_of(tokenizer, known, is_flat=is_flat, is_prompt=False) == shown
    assert texts_of(tokenizer, known, is_flat=is_flat, is_prompt=True) == shown[1:]
    none = texts_of(tokenizer, known, is_flat=is_flat, is_prompt=False, detokenize=False)
    assert none == [None] * 6


def test_other_tokens_do_not_complete_a_character() -> None:
    tokenizer = tokenizer_of("byte_fallback")
    first, second, letter = (tokenizer.token_to_id(each) for each in ("<0xC3>", "<0xA9>", "a"))
    assert first is not None
    assert second is not None
    assert letter is not None
    assert tokenizer.text_after(second, [first]) == "é"
    assert tokenizer.text_after(second, [letter]) == ""
    assert tokenizer.text_after(second, [first, letter]) == ""
    assert tokenizer.text_after(second, []) == ""
    assert tokenizer.text_after(letter, [first]) == "a"
    assert tokenizer.text_after(first, [first]) == ""


def test_a_decoder_that_looks_beyond_tokens() -> None:
    tokenizer = tokenizer_of("metaspace")
    text = "the lazy  dog and a fox"
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = texts_of(tokenizer, ids, is_flat=False, is_prompt=False)
    assert "".join(each or "" for each in texts) == " " + text

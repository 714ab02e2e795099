"""Incremental text equals decoded text, whatever the tokens and however they are cut."""

from __future__ import annotations

import codecs
import random
import time
from functools import lru_cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweeps import examples
from trained_tokenizers import TEXTS, byte_fallback, byte_level, metaspace, word_level

from quire.tokenizer import Tokenizer, detokenizer_of

KINDS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "byte_fallback_unstripped": lambda: byte_fallback(strip=False),
    "word_level": word_level,
    "metaspace": metaspace,
}
BYTE_WISE = ["byte_level", "byte_fallback", "byte_fallback_unstripped"]


@lru_cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(KINDS[kind](), {})


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    parts, begin = [], 0
    for size in sizes:
        parts.append(ids[begin : begin + size])
        begin += size
    return [*parts, ids[begin:]]


def stream(
    tokenizer: Tokenizer, prompt: list[int], parts: list[list[int]], skip: bool
) -> list[str]:
    detokenizer = detokenizer_of(tokenizer, prompt, skip_special_tokens=skip)
    return [*(detokenizer.push(part) for part in parts), detokenizer.finish()]


id_lists = st.lists(st.integers(0, 399), max_size=40)
sizes = st.lists(st.integers(0, 4), max_size=40)
texts = st.text(max_size=60)


@given(ids=id_lists, cuts=sizes, split=st.integers(0, 40), skip=st.booleans())
@settings(max_examples=examples(400), deadline=None)
def test_byte_level_equals_full_decode_for_any_tokens(
    ids: list[int], cuts: list[int], split: int, skip: bool
) -> None:
    tokenizer = tokenizer_of("byte_level")
    prompt, output = ids[:split], ids[split:]
    pieces = stream(tokenizer, prompt, cut(output, cuts), skip)
    full = tokenizer.backend.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == full
    settled = settled_text(tokenizer, prompt, skip)
    if not any(tokenizer.decode([token_id], skip_special_tokens=skip) for token_id in output):
        full = settled  # the prompt's own unfinished character is no output
    assert settled + "".join(pieces) == full


def settled_text(tokenizer: Tokenizer, prompt: list[int], skip: bool) -> str:
    """The prompt's text without the character that it begins and does not end."""
    table = tokenizer.pieces
    if table is None:
        return tokenizer.decode(prompt, skip_special_tokens=skip).rstrip("\ufffd")
    data = b"".join(table.piece_bytes(i) for i in prompt if not (skip and i in table.special_ids))
    if table.strips_first_space:
        data = data.removeprefix(b" ")
    return codecs.utf_8_decode(data, table.errors, False)[0]


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(text=texts, cuts=sizes, split=st.integers(0, 60), skip=st.booleans())
@example(text="你好😀", cuts=[1] * 20, split=2, skip=True)
@example(text="<|im_start|>x<|im_end|>", cuts=[1] * 20, split=0, skip=False)
@settings(max_examples=examples(150), deadline=None)
def test_every_kind_equals_full_decode_for_tokens_of_a_text(
    kind: str, text: str, cuts: list[int], split: int, skip: bool
) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)
    full = tokenizer.backend.decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == full
    pieces = stream(tokenizer, [], cut(ids, cuts), skip)
    assert "".join(pieces) == full
    before = settled_text(tokenizer, ids[:split], skip)
    after = "".join(stream(tokenizer, ids[:split], cut(ids[split:], cuts), skip))
    assert before + after == full


@pytest.mark.parametrize("kind", BYTE_WISE)
def test_half_a_character_is_held_back_and_ends_as_a_replacement(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("a 𝔘", add_special_tokens=False)
    detokenizer = detokenizer_of(tokenizer, [])
    pieces = [detokenizer.push([token_id]) for token_id in ids[:-1]]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces).strip() == "a"
    assert set(detokenizer.finish()) == {"\ufffd"}
    assert detokenizer.push([ids[-1]]) == "𝔘"


def test_a_prompt_may_end_inside_a_character() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer.encode("𝔘!")
    for split in range(len(ids)):
        detokenizer = detokenizer_of(tokenizer, ids[:split])
        assert detokenizer.push(ids[split:]) == ("𝔘!" if split < len(ids) - 1 else "!")


def test_a_replacement_character_in_the_text_itself_comes_through() -> None:
    for kind in KINDS:
        tokenizer = tokenizer_of(kind)
        for text in ("\ufffd", "x\ufffd\ufffd", "\ufffd y"):
            ids = tokenizer.encode(text)
            full = tokenizer.backend.decode(ids)
            assert "".join(stream(tokenizer, [], cut(ids, [1] * len(ids)), True)) == full


def test_spaces_between_special_tokens() -> None:
    tokenizer = tokenizer_of("word_level")
    ids = [tokenizer.token_to_id(token) for token in ("The", "[CALL]", "[END]", "The")]
    spaced = detokenizer_of(tokenizer, [], skip_special_tokens=False)
    assert "".join(spaced.push([token_id]) for token_id in ids) == "The [CALL] [END] The"
    joined = detokenizer_of(
        tokenizer, [], skip_special_tokens=False, spaces_between_special_tokens=False
    )
    assert "".join(joined.push([token_id]) for token_id in ids) == "The [CALL][END] The"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_cost_per_token_does_not_grow(kind: str) -> None:
    """Endless special tokens or broken bytes must not make a window grow."""
    tokenizer = tokenizer_of(kind)
    special = min(tokenizer.special_token_ids)
    broken = tokenizer.token_to_id("<0xE4>") or tokenizer.encode("你")[0]
    for token_id in (special, broken):
        detokenizer = detokenizer_of(tokenizer, [])
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            for _ in range(200):
                detokenizer.push([token_id])
            times.append(time.perf_counter() - begin)
        assert min(times[10:]) < 5 * min(times[:10]) + 1e-3


def test_random_bytes_through_byte_fallback_never_break_a_later_text() -> None:
    tokenizer = tokenizer_of("byte_fallback")
    generator = random.Random(1)
    tail = tokenizer.encode(TEXTS[0], add_special_tokens=False)
    for _ in range(100):
        noise = [generator.randrange(3, 259) for _ in range(generator.randrange(8))]
        pieces = stream(tokenizer, [], cut([*noise, *tail], [1] * 60), True)
        assert "".join(pieces).endswith(
            "The quick brown fox jumps over the lazy dog, again and again."
        )


@pytest.mark.parametrize("kind", ["byte_level", "word_level"])
def test_some_special_tokens_may_be_kept(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    first, kept, last = sorted(tokenizer.special_token_ids)
    ids = [first, kept, *tokenizer.encode("fox", add_special_tokens=False), kept, last]
    plain = "".join(stream(tokenizer, [], [ids], skip=True))
    detokenizer = detokenizer_of(tokenizer, [], kept_token_ids=[kept, 10**6])
    text = "".join([detokenizer.push(ids), detokenizer.finish()])
    mark = tokenizer.token_text(kept)
    assert plain.split() == ["fox"]
    assert text.replace(" ", "") == f"{mark}fox{mark}"

"""A long text in pieces gives the ids of the whole, for every tokenizer that says it can be cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from trained_tokenizers import byte_fallback, byte_level, corpus, metaspace, save, word_level

from quire.gguf.tokenizers.word_patterns import WORD_PATTERNS
from quire.tokenizer import Tokenizer
from quire.tokenizer.borders import find_borders, has_quick_patterns

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained(model: models.Model, **options: object) -> tokenizers.Tokenizer:
    """Byte-level, but for what the caller sets afterwards."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>"],
        **options,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def split_by(*patterns: str, nfc: bool = False) -> tokenizers.Tokenizer:
    """As Llama 3, Qwen and Mistral's later models."""
    tokenizer = trained(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, letters])
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


def digits() -> tokenizers.Tokenizer:
    """As SmolLM."""
    tokenizer = trained(models.BPE())
    steps = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def newlines_apart() -> tokenizers.Tokenizer:
    """As the bundled model: pairs of newlines are one word."""
    tokenizer = trained(models.BPE())
    steps = [
        pre_tokenizers.Split(Regex(r"\n{1,2}"), "isolated"),
        pre_tokenizers.Digits(True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def within_words() -> tokenizers.Tokenizer:
    """SentencePiece's BPE, whose tokens begin with a space or have none, as Llama 2's."""
    words = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, special_tokens=["<unk>"])
    words.train_from_iterator(corpus(), trainer)
    return words


def sentencepiece() -> tokenizers.Tokenizer:
    tokenizer = within_words()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def metaspace_unsplit() -> tokenizers.Tokenizer:
    tokenizer = within_words()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


CAN_BE_CUT: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt2": byte_level,
    "llama3": lambda: split_by(LLAMA3),
    "qwen2": lambda: split_by(QWEN2, nfc=True),
    "tekken": lambda: split_by(TEKKEN),
    "two splits": lambda: split_by(r"\p{N}{1,3}", LLAMA3),
    "digits": digits,
    "newlines apart": newlines_apart,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "metaspace unsplit": metaspace_unsplit,
}
_made: dict[str, Tokenizer] = {}


def cut(name: str) -> Tokenizer:
    if name not in _made:
        backend = CAN_BE_CUT[name]()
        _made[name] = Tokenizer(backend, {})
    return _made[name]


TEXTS = st.lists(
    st.sampled_from(
        [
            *"abcAB019 \n\t.,;:!?_-/'éßñ你好。，🙂\u0301\u00a0",
            "  ",
            "\r\n",
            " the",
            "don't",
            "'s",
            "<|im_start|>",
            "<tool_call>",
            "<tool call>",
            "<s>",
            " world",
            "世界",
            "x " * 8,
        ]
    )
    | st.text(max_size=3),
    max_size=40,
).map("".join)


@pytest.mark.parametrize("name", CAN_BE_CUT)
@given(text=TEXTS, size=st.integers(1, 20), special=st.booleans())
@settings(max_examples=120, deadline=None)
def test_pieces_give_the_ids_of_the_whole(name: str, text: str, size: int, special: bool) -> None:
    tokenizer = cut(name)
    text = text.encode("utf-8", "replace").decode()
    whole = tokenizer.encode_batch([text], add_special_tokens=special)[0]
    pieces = tokenizer.encode_pieces(text, add_special_tokens=special, size=size)
    assert [token_id for piece in pieces for token_id in piece] == whole


@pytest.mark.parametrize("name", CAN_BE_CUT)
def test_long_texts_are_cut(name: str) -> None:
    tokenizer, text = cut(name), "the quick, brown fox " * 5000
    pieces = list(tokenizer.encode_pieces(text, add_special_tokens=False, size=1000))
    assert len(pieces) >= 90
    assert tokenizer.encode(text) == tokenizer.encode_batch([text])[0]


def prefixed() -> tokenizers.Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def lowercased() -> tokenizers.Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def greedy_token() -> tokenizers.Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<pad>", rstrip=True)])
    return tokenizer


@pytest.mark.parametrize(
    "make",
    [
        word_level, byte_fallback, prefixed, lowercased, greedy_token,
        lambda: split_by(r"\p{N}{1,3}"), lambda: split_by(r"\w+ \w+|\s+|\p{L}+"),
    ],
)  # fmt: skip
def test_what_is_not_known_to_be_safe_is_not_cut(make: Callable[[], tokenizers.Tokenizer]) -> None:
    backend = make()
    assert find_borders(backend) is None
    tokenizer = Tokenizer(backend, {})
    text = "the quick brown fox " * 4000
    assert len(list(tokenizer.encode_pieces(text))) == 1


def test_no_border_lies_inside_of_an_added_token() -> None:
    backend = byte_level()
    backend.add_tokens([AddedToken("a,b;c d", special=False)])
    tokenizer = Tokenizer(backend, {})
    text = "x a,b;c d y." * 40
    for size in range(1, 30):
        pieces = tokenizer.encode_pieces(text, size=size)
        assert [i for piece in pieces for i in piece] == tokenizer.encode(text)


def test_a_text_without_borders_is_one_piece() -> None:
    borders = find_borders(byte_level())
    assert borders is not None
    for text in ("a" * 5000, "", "🙂" * 3000):
        assert list(borders.pieces(text, 100)) == [text]
    assert next(borders.pieces("a" * 500 + ",b" * 100, 100)) == "a" * 500


def test_a_saved_byte_level_tokenizer_can_be_cut(tmp_path: Path) -> None:
    saved = Tokenizer.from_directory(save(tmp_path, byte_level()))
    assert saved.borders is not None
    assert json.loads((tmp_path / "tokenizer.json").read_text())


def _with_pattern(pattern: str) -> tokenizers.Tokenizer:
    rust = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    rust.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])
    return rust


def test_patterns_that_take_little_time() -> None:
    """Those of the files that Quire writes itself, and of the usual tokenizers."""
    for row in WORD_PATTERNS.values():
        assert all(has_quick_patterns(_with_pattern(pattern)) for pattern in row.splits)
    for make in (byte_level, byte_fallback, word_level, metaspace):
        assert has_quick_patterns(make())
    for pattern in ("(a+)+$", "(?=(?:a|a){23}z)", r"\s+|(a+)+$", r"\p{L}*\p{L}*z"):
        assert not has_quick_patterns(_with_pattern(pattern))
        rust = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
        steps = [normalizers.NFC(), normalizers.Replace(Regex(pattern), "x")]
        rust.normalizer = normalizers.Sequence(steps)
        assert not has_quick_patterns(rust)

"""SentencePiece's `tokenizer.model`: the ids of the library sentencepiece, and of its rules."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import sentencepiece_files as sp
from trained_tokenizers import TEXTS, corpus

from quire.errors import CheckpointError
from quire.tokenizer import Tokenizer
from quire.tokenizer.trial import try_out

WORDS = ["▁a", "ab", "▁b", "▁ab", "abab", "é▁", "▁▁", "ba", "aab", "▁aab", "<sep", "0x41"]
BYTES = sp.number(35, 1)
ROWS = sp.llama_rows(WORDS)


def load(directory: Path, data: bytes, **config: Any) -> Tokenizer:
    (directory / "tokenizer.model").write_bytes(data)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_directory(directory)


def merged(text: str) -> list[str]:
    """The pieces of a text, by the definition: of all neighbours that are a piece together, the one
    of the highest score, and of those the first, becomes one."""
    scores = {text: score for text, score, kind in ROWS if kind == sp.NORMAL}
    parts = list(("▁" + text).replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(pairwise(parts))
            if left + right in scores
        ]
        if not pairs:
            break
        _, place = min(pairs)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [
        name
        for part in parts
        for name in ([part] if part in scores else [f"<0x{b:02X}>" for b in part.encode()])
    ]


def names(tokenizer: Tokenizer, text: str) -> list[str | None]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [tokenizer.id_to_token(token_id) for token_id in ids]


def test_texts_are_divided_by_scores(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, sp.model(ROWS, trainer=BYTES, normalizer=sp.KEEPS_SPACES))
    generator = random.Random(1)
    for _ in range(300):
        length = generator.randrange(1, 30)
        text = "".join(generator.choice(["a", "b", "é", " ", "日", "0x41"]) for _ in range(length))
        assert names(tokenizer, text) == merged(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("") == [1]
    assert tokenizer.pieces is not None


def test_long_texts_are_cut(tmp_path: Path) -> None:
    words = ["▁a", "ab", "▁b", "▁ab"]
    data = sp.model(sp.llama_rows(words), trainer=BYTES, normalizer=sp.KEEPS_SPACES)
    for legacy in (False, True):
        tokenizer = load(tmp_path, data, legacy=legacy)
        text = "ab a  b " * 9
        whole = tokenizer.encode(text)
        assert tokenizer.borders is not None
        assert sum(tokenizer.encode_pieces(text, size=10), []) == whole  # noqa: RUF017


def test_special_tokens_and_flags(tmp_path: Path) -> None:
    data = sp.model(ROWS, trainer=BYTES, normalizer=sp.KEEPS_SPACES)
    first = load(tmp_path, data)
    assert first.roles == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    assert first.encode("b")[0] == 1
    assert names(first, "a</s>b") == ["▁a", "</s>", "b"]
    assert names(load(tmp_path, data, legacy=True), "a</s>b") == ["▁a", "</s>", "▁b"]
    assert names(load(tmp_path, data, add_prefix_space=False), "a</s>b") == ["a", "</s>", "b"]
    around = load(tmp_path, data, add_bos_token=False, add_eos_token=True).encode("b")
    assert (around[0] != 1, around[-1]) == (True, 2)
    other = load(tmp_path, data, bos_token="</s>")
    assert other.encode("b")[0] == 2


def test_added_tokens_get_the_ids_that_the_file_says(tmp_path: Path) -> None:
    data, size = sp.model(ROWS, trainer=BYTES), len(ROWS)
    added = {"1": {"content": "<s>", "special": True}, str(size + 3): {"content": "<|im_end|>"}}
    tokenizer = load(tmp_path, data, added_tokens_decoder=added)
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [size + 3]
    assert tokenizer.id_to_token(size + 1) == f"<|unused_{size + 1}|>"
    for wrong, message in (({"5": "<s>"}, "added as token 5, and the vocabulary has it as 1"),
                           ({str(10**8): "x"}, "at most 65536 are added")):  # fmt: skip
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path, data, added_tokens_decoder=wrong)


def test_chatglm_begins_texts_with_its_own_tokens(tmp_path: Path) -> None:
    data = sp.model(ROWS, trainer=BYTES, normalizer=sp.KEEPS_SPACES)
    tokenizer = load(tmp_path, data, tokenizer_class="ChatGLMTokenizer")
    assert tokenizer.encode("b")[:2] == [len(ROWS) + 1, len(ROWS) + 3]
    with pytest.raises(CheckpointError, match=r"begin or end with '\[gMASK\]', which is not in"):
        load(tmp_path, data, tokenizer_class="ChatGLM4Tokenizer")


def test_the_trial_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load(tmp_path, sp.model(ROWS, trainer=BYTES))
    try_out(tmp_path)
    assert list((tmp_path / "cache" / "quire" / "tokenizers").iterdir())


UNK = ("<unk>", 0.0, sp.UNKNOWN)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "there are no pieces"),
        (b"{}", "kind 3, which is not in use"),
        (sp.model(ROWS)[:-40], "truncated|does not end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a field of .* bytes begins at"),
        (b"\xff" * 30, "does not end"),
        (sp.number(1, 5), "no part of a SentencePiece model"),
        (sp.model([("a", 0.0, 1)]), "0 pieces stand for what is unknown"),
        (sp.model([UNK, UNK]), "is there twice"),
        (sp.model([UNK, ("", 0.0, 1)]), "is empty"),
        (sp.model([UNK, ("a", float("nan"), 1)]), "score nan"),
        (sp.model([UNK, ("a", 0.0, 9)]), "type 9"),
        (sp.model([UNK], trainer=BYTES), "byte_fallback is set, and there is no piece <0x00>"),
        (sp.model([UNK], kind=3), "pieces that are words"),
        (sp.model([UNK], kind=77), "pieces that are of kind 77"),
        (sp.model([UNK], trainer=sp.number(24, 1)), "treat_whitespace_as_suffix"),
        (sp.model([UNK], normalizer=sp.number(5, 0)), "escape_whitespaces"),
        (sp.model([UNK]) + sp.block(5, sp.block(2, b"x")), "denormalizer_spec"),
        (sp.model([UNK, ("<x>", 0.0, sp.USER_DEFINED)]), "remove_extra_whitespaces"),
        (
            sp.model([UNK, ("▁▁", 0.0, sp.USER_DEFINED)], normalizer=sp.KEEPS_SPACES),
            "add_dummy_prefix",
        ),
        (sp.model([UNK, ("a" * 600, 0.0, 1)]), "has 600 characters; at most 512"),
        (sp.block(1, sp.block(1, b"\xff")), "no UTF-8 text"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, data)


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    good, generator = sp.model(ROWS, trainer=BYTES), random.Random(5)
    refused = 0
    for _ in range(500):
        data = bytearray(good)
        for _ in range(generator.choice([1, 2, 5])):
            data[generator.randrange(len(data))] = generator.randrange(256)
        if generator.random() < 0.2:
            del data[generator.randrange(len(data)) :]
        try:
            load(tmp_path, bytes(data)).encode("ab é")
        except CheckpointError:
            refused += 1
    assert 100 < refused < 500


def trained(**options: Any) -> bytes:
    library = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=out, minloglevel=2, hard_vocab_limit=False,
        character_coverage=0.98, **options,
    )  # fmt: skip
    return out.getvalue()


LETTERS = "ab cdeé ÄöüßThe quick foxЖы你好世  \t\n0123  ﬁ①Ⅳ <0x41><sep>😀👩‍👩‍👧‍👦"


def texts(seed: int) -> Iterator[str]:
    generator = random.Random(seed)
    yield from TEXTS
    words = " ".join(TEXTS).split()
    for _ in range(60):
        yield "".join(generator.choice(LETTERS) for _ in range(generator.randrange(1, 40)))
        spaces = generator.choice([" ", "  ", " \n", "   "])
        yield " ".join(generator.choices(words, k=8)).replace(" ", spaces, 2) + spaces


@pytest.mark.parametrize(
    ("kind", "fallback", "rule", "prefix", "removes"),
    list(
        product(["bpe", "unigram"], [True, False], ["identity", "nmt_nfkc"], *2 * [[True, False]])
    ),
)
def test_ids_are_those_of_the_library(
    kind: str, fallback: bool, rule: str, prefix: bool, removes: bool, tmp_path: Path
) -> None:
    """Symbols that a user defined, where they can be read."""
    data = trained(
        model_type=kind, vocab_size=500 if fallback else 330, byte_fallback=fallback,
        normalization_rule_name=rule, add_dummy_prefix=prefix, remove_extra_whitespaces=removes,
        user_defined_symbols=[] if removes else ["<sep>", "<mask>"],
    )  # fmt: skip
    library = pytest.importorskip("sentencepiece")
    theirs = library.SentencePieceProcessor(model_proto=data)
    ours = load(tmp_path, data)
    for text in texts(seed=fallback):
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, repr(text)
        decoded = theirs.decode(ids).replace(" \u2047 ", "<unk>")
        assert ours.decode(ids, skip_special_tokens=False) == decoded, repr(text)


def test_spaces_in_a_row_that_are_symbols(tmp_path: Path) -> None:
    """As Gemma's, which adds no space before a text."""
    data = trained(
        model_type="bpe", vocab_size=500, byte_fallback=True, normalization_rule_name="identity",
        add_dummy_prefix=False, remove_extra_whitespaces=False,
        user_defined_symbols=["\u2581" * count for count in range(2, 6)],
    )  # fmt: skip
    library = pytest.importorskip("sentencepiece")
    theirs = library.SentencePieceProcessor(model_proto=data)
    ours = load(tmp_path, data, tokenizer_class="GemmaTokenizer")
    for text in ("a  b", "    indented     more", " x", "\n\n   \t  end   "):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)

"""SentencePiece's `tokenizer.model`: the ids of the library sentencepiece, and of its rules."""

from __future__ import annotations

import io
import json
import random
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import sentencepiece_files as sp
from trained_tokenizers import TEXTS, corpus

from quire.errors import CheckpointError, RequestError
from quire.tokenizer import Tokenizer
from quire.tokenizer.formats.sentencepiece_model import _piece, fields, read_sentencepiece
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
        (b"", "must have pieces"),
        (b"{}", "kind 3, which is not in use"),
        (sp.model(ROWS)[:-40], "truncated|does not end"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a field of .* bytes begins at"),
        (b"\xff" * 30, "does not end"),
        (sp.number(1, 5), "unknown field .* in a SentencePiece model"),
        (sp.model([("a", 0.0, 1)]), "0 pieces stand for what is unknown"),
        (sp.model([UNK, UNK]), "is there twice"),
        (sp.model([UNK, ("", 0.0, 1)]), "is empty"),
        (sp.model([UNK, ("a", float("nan"), 1)]), "score nan"),
        (sp.model([UNK, ("a", 0.0, 9)]), "type 9"),
        (sp.model([UNK], trainer=BYTES), "byte_fallback requires a piece <0x00>"),
        (sp.model([UNK], kind=3), "pieces that are words"),
        (sp.model([UNK], kind=77), "pieces that are of kind 77"),
        (sp.model([UNK], trainer=sp.number(24, 1)), "treat_whitespace_as_suffix"),
        (sp.model([UNK], normalizer=sp.number(5, 0)), "escape_whitespaces"),
        (sp.model([UNK]) + sp.block(5, sp.block(2, b"x")), "denormalizer_spec"),
        *(
            (sp.model([UNK], normalizer=sp.block(2, charsmap)), "refuses it|2e\\+03 times as long")
            for charsmap in (
                b"x",
                bytes(4),
                b"\5\0\0\0" + bytes(9),
                b"\4\0\0\0\0\1\0\0a\0",
                b"\4\0\0\0\0\0\0\0a",
                b"\4\0\0\0\0\0\0\0\xff\0",
                b"\4\0\0\0\0\0\0\0" + b"a" * 2000 + b"\0",
            )
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


def trained(sentences: Sequence[str], **options: Any) -> bytes:
    library = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=out, minloglevel=2, hard_vocab_limit=False,
        character_coverage=0.98, **options,
    )  # fmt: skip
    return out.getvalue()


MORE_WORDS = "ガギ カ\u3099 ｶﾞ 가각 e\u0301 ﬁ ① １２３ Ａbc a    b  c      d aaaa aaaaaaaa zzz"
LETTERS = "ab cdeé ÄöüßThe quick foxЖы你好世  \t\n\r0123  ﬁ①Ⅳ <0x41>😀👩‍👩‍👧‍👦"
MARKS = [
    *"\u0301\u0323\u3099\u309aｶﾞﾟハ\u1100\u1161\u11a8가\u200b\u00ad\u3000\u00a0\x01\ufdfaİẞ\u1e9bＡ",
    "\r\n", "\U0001d15e", "<sep>", "＜sep＞", "\u0301z", "①", "ab", "aaa", "  ",
]  # fmt: skip


def texts(seed: int) -> Iterator[str]:
    generator = random.Random(seed)
    yield from TEXTS
    words = " ".join(TEXTS).split()
    for _ in range(60):
        found = [generator.choice(generator.choice([LETTERS, MARKS])) for _ in range(30)]
        yield "".join(found[: generator.randrange(1, 30)])
        yield unicodedata.normalize("NFD", "".join(map(chr, generator.choices(RANGES, k=12))))
        spaces = generator.choice([" ", "  ", " \n", "   "])
        yield " ".join(generator.choices(words, k=8)).replace(" ", spaces, 2) + spaces
    for length in (257, 300, 511):
        yield from (" " * length, "a" * length, "x" + " " * length + "y", "z" * length + " z")


RANGES = [*range(0x20, 0x250), *range(0x300, 0x370), *range(0x1100, 0x1200), *range(0xAC00, 0xAD00)]
SYMBOLS = [
    [],
    ["<sep>", "<mask>"],
    ["<sep>", "ab", "aaa", "▁x", "▁▁"],
    ["ｶx", "\u0301z", "①", "\n"],
]


def same_as_the_library(data: bytes, directory: Path, seed: int) -> None:
    library = pytest.importorskip("sentencepiece")
    theirs = library.SentencePieceProcessor(model_proto=data)
    ours = load(directory, data)
    for text in texts(seed):
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, repr(text)
        decoded = theirs.decode(ids).replace(" \u2047 ", "<unk>")
        assert ours.decode(ids, skip_special_tokens=False) == decoded, repr(text)


ALL = list(
    product(
        ["bpe", "unigram"], [True, False], ["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf"],
        [True, False], [True, False], SYMBOLS,
    )
)  # fmt: skip


random.Random(8).shuffle(ALL)
PARTS = [0, 1, 2, 3, *(pytest.param(part, marks=pytest.mark.long) for part in range(4, 32))]


@pytest.mark.parametrize("part", PARTS)
def test_ids_are_those_of_the_library(part: int, tmp_path: Path) -> None:
    """All combinations of options, in parts of eight."""
    for kind, fallback, rule, prefix, removes, symbols in ALL[part :: len(PARTS)]:
        data = trained(
            [*corpus(), *[MORE_WORDS] * 20],
            model_type=kind, vocab_size=600 if fallback else 400, byte_fallback=fallback,
            normalization_rule_name=rule, add_dummy_prefix=prefix, split_digits=fallback,
            remove_extra_whitespaces=removes, user_defined_symbols=symbols,
            allow_whitespace_only_pieces=prefix,
        )  # fmt: skip
        same_as_the_library(data, tmp_path, seed=part)


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("change", ["equal scores", "unused pieces"])
def test_changed_models(change: str, kind: str, rule: str, tmp_path: Path) -> None:
    """As of vocabularies that were extended, whose new pieces all have the score 0."""
    data = trained(
        corpus(), model_type=kind, vocab_size=500, byte_fallback=True, normalization_rule_name=rule,
        remove_extra_whitespaces=False,
    )  # fmt: skip
    generator = random.Random(3)
    pieces, rest = b"", b""
    for number, _, value in fields(data, "model"):
        assert isinstance(value, bytes)
        if number != 1:
            rest += sp.block(number, value)
            continue
        found = _piece(value, tmp_path)
        score, type = found.score, found.type
        if type == sp.NORMAL and change == "equal scores":
            score = 0.0 if generator.random() < 0.3 else float(round(score / 40))
        elif type == sp.NORMAL and generator.random() < 0.2:
            type = sp.UNUSED
        pieces += sp.piece(found.text, score, type)
    same_as_the_library(pieces + rest, tmp_path, seed=2)


def test_a_damaged_charsmap_is_refused_or_applied(tmp_path: Path) -> None:
    data = trained(corpus(), model_type="bpe", vocab_size=300)
    good = read_sentencepiece(data, tmp_path).charsmap
    generator = random.Random(7)
    outcomes = {"refused": 0, "applied": 0}
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(generator.choice([1, 3, 30])):
            bad[generator.randrange(len(bad))] = generator.randrange(256)
        try:
            tokenizer = load(tmp_path, data + sp.block(3, sp.block(2, bytes(bad))))
        except CheckpointError:
            outcomes["refused"] += 1
            continue
        outcomes["applied"] += 1
        for text in ("e\u0301 ﬁ①\u1100\u1161 \U0001d15e\n", "".join(map(chr, range(0x250)))):
            tokenizer.encode(text)
    assert min(outcomes.values()) > 5


def test_control_tokens_are_found_before_a_text_is_normalised(tmp_path: Path) -> None:
    """And are not made by normalisation."""
    data = trained(corpus(), model_type="bpe", vocab_size=500, byte_fallback=True)
    added = {
        "500": {"content": "<|left|>", "lstrip": True, "special": True},
        "501": {"content": "<|right|>", "rstrip": True, "special": True},
    }
    tokenizer = load(tmp_path, data, added_tokens_decoder=added, add_bos_token=False)
    assert names(tokenizer, "＜s＞")[-1] != "<s>"
    fox = names(tokenizer, "fox")
    assert names(tokenizer, "fox  </s>ﬁ fox")[: len(fox) + 1] == [*fox, "</s>"]
    assert names(tokenizer, "fox  <|left|>") == [*fox, "<|left|>"]
    assert names(tokenizer, "<|right|>  fox") == ["<|right|>", *fox]
    assert tokenizer.encode("") == []
    with pytest.raises(RequestError, match="character 1 is a lone surrogate"):
        tokenizer.encode("a\ud800")


def test_spaces_in_a_row_that_are_symbols(tmp_path: Path) -> None:
    """As Gemma's, which adds no space before a text."""
    data = trained(
        corpus(),
        model_type="bpe", vocab_size=500, byte_fallback=True, normalization_rule_name="identity",
        add_dummy_prefix=False, remove_extra_whitespaces=False,
        user_defined_symbols=["\u2581" * count for count in range(2, 6)],
    )  # fmt: skip
    library = pytest.importorskip("sentencepiece")
    theirs = library.SentencePieceProcessor(model_proto=data)
    ours = load(tmp_path, data, tokenizer_class="GemmaTokenizer")
    for text in ("a  b", "    indented     more", " x", "\n\n   \t  end   "):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)

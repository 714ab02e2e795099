"""A vocabulary of tiktoken as `tokenizer.model`, as GLM-4 has it, against tiktoken."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from byte_pieces import PIECES
from trained_tokenizers import TEXTS

from quire.errors import CheckpointError
from quire.gguf.tokenizers.word_patterns import WORD_PATTERNS
from quire.tokenizer import Tokenizer

SPECIALS = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|user|>"]


def vocabulary(pieces: list[bytes]) -> bytes:
    lines = [b"%s %d\n" % (base64.b64encode(piece), rank) for rank, piece in enumerate(pieces)]
    return b"".join(lines)


def load(directory: Path, data: bytes, name: str = "ChatGLM4Tokenizer", **config: Any) -> Tokenizer:
    added = {
        len(PIECES) + place: {"content": text, "special": True}
        for place, text in enumerate(SPECIALS)
    }
    (directory / "tokenizer.model").write_bytes(data)
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": name, "added_tokens_decoder": added, **config})
    )
    return Tokenizer.from_directory(directory)


def test_ids_are_those_of_the_library(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    [pattern] = WORD_PATTERNS["glm4"].splits
    theirs = tiktoken.Encoding(
        "glm4", pat_str=pattern, special_tokens={},
        mergeable_ranks={piece: rank for rank, piece in enumerate(PIECES)},
    )  # fmt: skip
    ours, generator = load(tmp_path, vocabulary(PIECES)), random.Random(1)
    random_texts = [
        "".join(generator.choice("abcé 1234\n!日") for _ in range(30)) for _ in range(200)
    ]
    for text in [*TEXTS, *random_texts]:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text), repr(text)
        assert ours.decode(ids) == text


def test_texts_begin_with_two_tokens(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, vocabulary(PIECES))
    before = [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode("a")[:2]]
    assert before == ["[gMASK]", "<sop>"]
    assert tokenizer.encode("<|user|>", add_special_tokens=False) == [len(PIECES) + 6]


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (
            vocabulary(PIECES),
            "KimiTokenizer",
            "'KimiTokenizer' is not known.*ChatGLM4Tokenizer and",
        ),
        (vocabulary(PIECES[5:]), "ChatGLM4Tokenizer", "every byte must be a token"),
        (vocabulary([*PIECES, b"a" * 600]), "ChatGLM4Tokenizer", "has 600 bytes; 1 to 512"),
        (vocabulary(PIECES) + b"YQ== 5\n", "ChatGLM4Tokenizer", "ranks must count from 0"),
        (vocabulary(PIECES) + b"?? 600\n", "ChatGLM4Tokenizer", "must be base64"),
        (vocabulary([*PIECES, b"a"]), "ChatGLM4Tokenizer", "written alike"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, data, name)

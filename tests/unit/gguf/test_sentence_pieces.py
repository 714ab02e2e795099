"""Symbols that a user defined in files of SentencePiece, such as runs of blanks: the ids are those
of the library sentencepiece."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sentencepiece_files as sp
from gguf_files import Typed, float_tensors, gguf_bytes
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from quire.errors import CheckpointError
from quire.gguf.keys import Keys
from quire.gguf.split import read_headers
from quire.gguf.tokenizers.files import tokenizer_files
from quire.gguf.tokenizers.sentence_pieces import derived_merges

WORDS = ["▁a", "ab", "▁b", "▁ab", "abab", "ba", "aab", "▁aab"]
NO_PREFIX = sp.number(3, 0)


def _rows(lengths: Sequence[int]) -> list[sp.Row]:
    """Pieces with runs of marks and of line ends, before the others as in Gemma's."""
    rows = sp.llama_rows(WORDS)
    runs = [("▁" * length, 0.0, sp.USER_DEFINED) for length in lengths]
    ends = [("\n" * length, 0.0, sp.USER_DEFINED) for length in (1, 2, 3)]
    return [*rows[:3], *ends, *runs, *rows[3:]]


def _from_gguf(path: Path, rows: list[sp.Row], architecture: str) -> Tokenizer:
    """What llama.cpp's conversion writes: user-defined pieces have spaces, and no score."""
    is_defined = [kind == sp.USER_DEFINED for _, _, kind in rows]
    metadata = {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            text.replace("▁", " ") if defined else text
            for (text, _, _), defined in zip(rows, is_defined, strict=True)
        ],
        "tokenizer.ggml.scores": [
            -1000.0 if defined else score
            for (_, score, _), defined in zip(rows, is_defined, strict=True)
        ],
        "tokenizer.ggml.token_type": [Typed("i32", kind) for _, _, kind in rows],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    table = float_tensors({"token_embd.weight": np.zeros((len(rows), 1), np.float32)})
    path.write_bytes(gguf_bytes(metadata, table))
    return Tokenizer.from_str(tokenizer_files(Keys(read_headers([path])))["tokenizer.json"])


@pytest.mark.parametrize(
    ("architecture", "lengths"),
    [("gemma3", range(2, 32)), ("llama", range(2, 17)), ("llama", (2, 4, 8)), ("gemma", (2, 3, 5))],
)
def test_runs_of_blanks(architecture: str, lengths: Sequence[int], tmp_path: Path) -> None:
    rows = _rows(lengths)
    normalizer = sp.KEEPS_SPACES + (NO_PREFIX if architecture.startswith("gemma") else b"")
    data = sp.model(rows, trainer=sp.number(35, 1), normalizer=normalizer)
    theirs = SentencePieceProcessor(model_proto=data)
    ours = _from_gguf(tmp_path / "m.gguf", rows, architecture)
    for length in range(1, 200):
        for text in (" " * length, f"a{' ' * length}b"):
            assert ours.encode(text).ids == theirs.encode(text), length
            assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
    generator = random.Random(3)
    is_gemma = architecture.startswith("gemma")  # the others put a mark before each part of a text
    letters = ["a", "b", " ", "  ", "é", " " * 40, *(["\n"] if is_gemma else [])]
    for _ in range(200):
        text = "".join(generator.choices(letters, k=generator.randrange(1, 30)))
        assert ours.encode(text).ids == theirs.encode(text), text


def test_the_memory_of_merges_is_bounded(tmp_path: Path) -> None:
    """A small file can have pieces that are made of two others in very many ways."""
    pieces = [letter * length for letter in "abcdefgh" for length in range(1, 513)]
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="made of two others in more than"):
            derived_merges(tmp_path, pieces, [-float(index) for index in range(len(pieces))])
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()

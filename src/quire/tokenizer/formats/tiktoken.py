"""Builds the Rust tokenizer from a vocabulary of tiktoken: a line for each token, its bytes in
base64 and its rank, which is its id. GLM-4 has one as `tokenizer.model`, and so have the
directories that are made of Whisper's files.

The file does not say how a text is cut into words: the class in tokenizer_config.json decides. Its
special tokens are those of tokenizer_config.json. Called by `rust_tokenizer`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError, quoted
from quire.gguf.tokenizers.word_patterns import WORD_PATTERNS
from quire.tokenizer.formats.byte_pieces import byte_level_backend, check_bytes

if TYPE_CHECKING:
    import tokenizers

_PATTERNS = {"ChatGLM4Tokenizer": "glm4", "WhisperTokenizer": "gpt-2"}
"""The name in `WORD_PATTERNS` of a class's words."""
_FIRST_LINE_BYTES = 1024


def is_tiktoken(data: bytes) -> bool:
    """Whether the first line is a token in base64 and a rank."""
    token, space, rank = data[:_FIRST_LINE_BYTES].partition(b"\n")[0].strip().partition(b" ")
    try:
        return bool(space) and rank.isdigit() and bool(base64.b64decode(token, validate=True))
    except (ValueError, binascii.Error):
        return False


def build_tiktoken(data: bytes, path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """`data`: of `path`; `config`: tokenizer_config.json. Raises CheckpointError."""
    name = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    if name not in _PATTERNS:
        raise CheckpointError(
            f"{path}: is a vocabulary of tiktoken, which does not say how texts are cut into "
            f"words; that of tokenizer_class {quoted(name or None)} is not known, those of "
            f"{' and '.join(_PATTERNS)} are. Write a tokenizer.json to the directory with "
            "transformers: AutoTokenizer.from_pretrained(path).save_pretrained(path)"
        )
    pieces = _pieces(data, path)
    check_bytes(pieces, path)
    [pattern] = WORD_PATTERNS[_PATTERNS[name]].splits
    return byte_level_backend(path, pattern, pieces)


def _pieces(data: bytes, path: Path) -> list[bytes]:
    """The bytes of the tokens, by rank."""
    pieces: list[bytes] = []
    for line in data.splitlines():
        token, _, rank = line.strip().partition(b" ")
        if not token and not rank:
            continue
        try:
            piece = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise CheckpointError(
                f"{path}: {quoted(line[:40])} must be base64 and a rank"
            ) from None
        if rank != b"%d" % len(pieces):
            raise CheckpointError(
                f"{path}: {quoted(line[:40])}: ranks must count from 0; this line has number "
                f"{len(pieces)}"
            )
        pieces.append(piece)
    return pieces

"""Refuses tokenizers that make a text much longer: a file of a few lines can double it forty times.

Called by `rust_tokenizer` with the loaded tokenizer. Counts the rules whose effect the file sets.
Unicode normalization is not counted: its growth is small and the same for all tokenizers.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError

if TYPE_CHECKING:
    import tokenizers

MAX_GROWTH = 1024
"""Most characters that the normalizer or the pre-tokenizer may make of one character, and most
tokens that the post-processor or the decoder may make of one token."""

Part = dict[str, Any]


def check_growth(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Raises CheckpointError, naming the part of the file, for more than `MAX_GROWTH`."""
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(backend, name)
        growth = 1 if part is None else _growth(json.loads(part.__getstate__()))
        refuse_growth(name, growth, path)


def refuse_growth(name: str, growth: float, path: Path) -> None:
    """Raises CheckpointError for more than `MAX_GROWTH` of a part of this name."""
    if growth > MAX_GROWTH:
        raise CheckpointError(
            f"{path}: the {name} makes a text up to {growth:.3g} times as long; "
            f"{MAX_GROWTH} times are allowed"
        )


def _growth(part: Part) -> float:
    """The growth factor of a part. A product that overflows is infinite, and refused."""
    measure = _MEASURES.get(str(part.get("type")))
    return 1.0 if measure is None else float(measure(part))


def _sequence(part: Part) -> float:
    steps: list[Part] = next((part[key] for key in _STEPS if isinstance(part.get(key), list)), [])
    return prod(_growth(step) for step in steps)


def _replace(part: Part) -> float:
    """A pattern may match between any two characters, unless it is a text."""
    content, pattern = len(str(part.get("content"))), part.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(text, str) and text:
        return max(1.0, content / len(text))
    return content + 1.0


def _prepend(part: Part) -> float:
    return len(str(part.get("prepend"))) + 1.0


def _template(part: Part) -> float:
    """The growth for a text of one token."""
    special = part.get("special_tokens")
    tokens = special if isinstance(special, dict) else {}
    grown = 0.0
    for piece in part.get("single") or []:
        if "Sequence" in piece:
            grown += 1
        else:
            name = piece.get("SpecialToken", {}).get("id")
            grown += len(tokens.get(name, {}).get("ids", ()))
    return max(1.0, grown)


def _precompiled(part: Part) -> float:
    try:
        return charsmap_growth(base64.b64decode(str(part.get("precompiled_charsmap"))))
    except (binascii.Error, ValueError):
        return 1.0


def charsmap_growth(charsmap: bytes) -> float:
    """Maximum number of bytes that a byte may become. SentencePiece's map has the length of a trie,
    the trie, and texts that each end in a zero byte."""
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :]
    return max(1.0, *(len(text) for text in texts.split(b"\0")))


_STEPS = ("normalizers", "pretokenizers", "processors", "decoders")
_MEASURES: dict[str, Callable[[Part], float]] = {
    "Sequence": _sequence,
    "Replace": _replace,
    "Prepend": _prepend,
    "ByteLevel": lambda _: 2.0,
    "Metaspace": lambda _: 2.0,
    "BPEDecoder": lambda _: 2.0,
    "Precompiled": _precompiled,
    "TemplateProcessing": _template,
}

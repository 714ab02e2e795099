"""`Charsmap`: how a SentencePiece model normalises the characters of a text.

The file has a trie of keys (a double array of the library darts-clone) and the texts that replace
them. At each place of a text the longest key is replaced. The Rust library's `Precompiled` works by
grapheme instead, and gives other texts.
Source of the layout: github.com/google/sentencepiece, src/normalizer.cc, and
github.com/s-yata/darts-clone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from quire.errors import CheckpointError
from quire.tokenizer.growth import MAX_GROWTH

_MAX_KEY_CHARS = 64
"""Longer keys are not found: a damaged trie may lead in a circle."""
_IS_VALUE = 1 << 31
_HAS_VALUE = 1 << 8


class Charsmap:
    """A trie and its texts. Immutable.

    A unit of the trie has a label, a byte, and says where its children are: its child with label
    `byte` is the unit at `base ^ byte`, if that unit has this label.
    """

    def __init__(self, data: bytes, kept: Collection[str], path: Path) -> None:
        """`data`: `precompiled_charsmap` of the file at `path`, empty for no map; `kept`: texts
        that stay as they are. Raises CheckpointError for a damaged map."""
        units, self._texts = _parts(data, path) if data else (np.zeros(1, np.int64), b"")
        self._units: list[int] = units.tolist()
        self._is_empty = not data
        found = [re.escape(text) for text in sorted(kept, key=len, reverse=True)]
        self._kept = re.compile("|".join(found) or r"(?!)")
        self.has_spaces_in_a_row = b"  " in self._texts

    def apply(self, text: str) -> str:
        """The text with all keys replaced."""
        keys = None if self._is_empty else self._places(text)
        if keys is None:
            return text
        kept = self._kept.search(text)
        parts, place = [], 0
        while match := keys.search(text, place):
            if kept is not None and kept.start() <= match.start():
                parts.append(text[place : kept.end()])
                place = kept.end()
                kept = self._kept.search(text, place)
                continue
            parts.append(text[place : match.start()])
            place = match.end()
            value = text[match.start()]
            for end, found in self._values(text, match.start()):
                place, value = end, found
            parts.append(value)
            if kept is not None and kept.start() < place:
                kept = self._kept.search(text, place)
        parts.append(text[place:])
        return "".join(parts)

    def _places(self, text: str) -> re.Pattern[str] | None:
        """Matches the characters that may begin a key; None if the text has no key.

        Nearly all letters begin a key, with an accent after them, so that pairs of characters are
        looked up, each once.
        """
        nodes = {letter: self._child(0, letter) for letter in set(text)}
        keys = [a for a, node in nodes.items() if node is not None and self._has_value(node)]
        pairs = [
            pair
            for pair in set(pairwise(text))
            if (node := nodes[pair[0]]) is not None and self._child(node, pair[1]) is not None
        ]
        choices = [_one_of(keys)] if keys else []
        if pairs:
            choices.append(f"{_one_of(a for a, _ in pairs)}(?={_one_of(b for _, b in pairs)})")
        return re.compile("|".join(choices)) if choices else None

    def _values(self, text: str, begin: int) -> Iterator[tuple[int, str]]:
        """Where the keys that begin there end, and what replaces them: the longest key last."""
        node = 0
        for end in range(begin + 1, min(begin + _MAX_KEY_CHARS, len(text)) + 1):
            child = self._child(node, text[end - 1])
            if child is None:
                return
            node = child
            if self._has_value(node):
                place = self._units[self._base(node)] & (_IS_VALUE - 1)
                yield end, self._texts[place : self._texts.index(b"\0", place)].decode()

    def _child(self, node: int, letter: str) -> int | None:
        """The unit that a character leads to."""
        for byte in letter.encode():
            node = self._base(node) ^ byte
            if node >= len(self._units) or self._units[node] & (_IS_VALUE | 0xFF) != byte:
                return None
        return node

    def _has_value(self, node: int) -> bool:
        return bool(self._units[node] & _HAS_VALUE)

    def _base(self, node: int) -> int:
        unit = self._units[node]
        return node ^ (unit >> 10 << ((unit & 1 << 9) >> 6))


def _one_of(letters: Iterable[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(set(letters))))}]"


def _parts(data: bytes, path: Path) -> tuple[np.ndarray, bytes]:
    """The units and the texts, after checks: each unit with a value leads to one, each value is the
    place of a text."""
    size = int.from_bytes(data[:4], "little")
    if size % 4 or not 4 <= size <= len(data) - 4:
        raise _damaged(path, f"the trie has {size} bytes, the map {len(data)}")
    units, texts = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64), data[4 + size :]
    inner = np.flatnonzero((units < _IS_VALUE) & (units & _HAS_VALUE != 0))
    bases = inner ^ (units[inner] >> 10 << ((units[inner] & 1 << 9) >> 6))
    if (bases >= len(units)).any() or (units[bases] < _IS_VALUE).any():
        raise _damaged(path, "a key has no value")
    begins = units[bases] & (_IS_VALUE - 1)
    starts = np.frombuffer(texts, np.uint8) & 0xC0 != 0x80
    if (begins >= len(texts)).any() or not starts[begins].all():
        raise _damaged(path, "the value of a key must be the start of a text")
    if texts[-1:] not in (b"\0", b"") or max(map(len, texts.split(b"\0"))) > MAX_GROWTH:
        raise _damaged(path, f"its texts must have at most {MAX_GROWTH} bytes and end in a zero")
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise _damaged(path, "its texts are not valid UTF-8") from None
    return units, texts


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: precompiled_charsmap is damaged: {what}")

"""`RankedMerges`: divides a text into the pieces of a SentencePiece BPE model.

Of all neighbours that are a piece together, those of the highest score become one, and of equal
scores the first. The Rust library orders all merges, so that it cannot have equal scores; nor has
it pieces that are merged and divided again, those of type UNUSED.
Source: github.com/google/sentencepiece, src/bpe_model.cc, `SampleEncode`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import heappop, heappush

from quire.tokenizer.formats.sentencepiece_model import (
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
)


def has_one_order(model: SentencePieceModel) -> bool:
    """Whether the Rust library can divide texts with this model."""
    merged = [p.score for p in model.pieces if p.type == NORMAL and len(p.text) > 1]
    return len(set(merged)) == len(merged) and all(p.type != UNUSED for p in model.pieces)


class RankedMerges:
    """The pieces and the score of each. Immutable."""

    def __init__(self, model: SentencePieceModel) -> None:
        usable, merged = (NORMAL, USER_DEFINED), (NORMAL, USER_DEFINED, UNUSED)
        self._ids = {p.text: i for i, p in enumerate(model.pieces) if p.type in usable}
        self._scores = {p.text: p.score for p in model.pieces if p.type in merged}
        self._unused = {p.text for p in model.pieces if p.type == UNUSED}
        self._unknown_id = next(i for i, p in enumerate(model.pieces) if p.type == UNKNOWN)
        places = {piece.text: place for place, piece in enumerate(model.pieces)}
        self._byte_ids = (
            [places[f"<0x{byte:02X}>"] for byte in range(256)] if model.byte_fallback else None
        )
        self._symbols = frozenset(p.text for p in model.pieces if p.type == USER_DEFINED)
        found = sorted(self._symbols, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, found), r"[\s\S]"]))

    def ids(self, text: str) -> list[int]:
        """The ids of the pieces that a normalised text is divided into."""
        found: list[int] = []
        was_unknown = False
        for part in self._divided(text):
            token_id = self._ids.get(part)
            if token_id is not None:
                found.append(token_id)
            elif self._byte_ids is not None:
                found += [self._byte_ids[byte] for byte in part.encode()]
            elif not was_unknown:
                found.append(self._unknown_id)
            was_unknown = token_id is None
        return found

    def _divided(self, text: str) -> Iterator[str]:
        """The parts in order. A merged part stays at the place of its left one; an empty one is
        gone. Pairs whose parts have changed since they were found are left out."""
        parts = self._pattern.findall(text)
        before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
        fixed = [part in self._symbols for part in parts]
        pairs: list[tuple[float, int, int, str]] = []
        divisions: dict[str, tuple[str, str]] = {}

        def find(left: int, right: int) -> None:
            if left < 0 or right >= len(parts) or fixed[left] or fixed[right]:
                return
            merged = parts[left] + parts[right]
            score = self._scores.get(merged)
            if score is not None:
                heappush(pairs, (-score, left, right, merged))
                if merged in self._unused:
                    divisions[merged] = (parts[left], parts[right])

        for left in range(len(parts) - 1):
            find(left, left + 1)
        while pairs:
            _, left, right, merged = heappop(pairs)
            if (
                not parts[left]
                or not parts[right]
                or len(parts[left] + parts[right]) != len(merged)
            ):
                continue
            parts[left], parts[right] = merged, ""
            after[left] = after[right]
            if after[left] < len(parts):
                before[after[left]] = left
            find(before[left], left)
            find(left, after[left])
        for part in filter(None, parts):
            yield from _divided_again(part, divisions)


def _divided_again(part: str, divisions: dict[str, tuple[str, str]]) -> Iterator[str]:
    """The parts that an unused piece was merged from."""
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if part in divisions:
            waiting += reversed(divisions[part])
        else:
            yield part

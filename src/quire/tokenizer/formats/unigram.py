"""`UnigramPieces`: divides a text into the pieces of a SentencePiece Unigram model.

The scores are added in single precision, as the library sentencepiece adds them. Where two
divisions are about as good, as in a long row of one letter, the rounding decides. The Rust library
adds in double precision and finds another division.
Source: github.com/google/sentencepiece, src/unigram_model.cc, `EncodeOptimized`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

from quire.tokenizer.formats.sentencepiece_model import (
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
)

_UNKNOWN_PENALTY = 10.0
_ONLY_A_PREFIX = math.inf


class UnigramPieces:
    """The pieces and the score of each. Immutable."""

    def __init__(self, model: SentencePieceModel) -> None:
        scores = [piece.score for piece in model.pieces if piece.type == NORMAL] or [0.0]
        self._unknown_score = _single(min(scores) - _UNKNOWN_PENALTY)
        self._unknown_id = next(i for i, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
        self._ids = {piece.text: i for i, piece in enumerate(model.pieces)}
        self._byte_ids = (
            [self._ids[f"<0x{byte:02X}>"] for byte in range(256)] if model.byte_fallback else None
        )
        self._scores = _scores(model.pieces)

    def ids(self, text: str) -> list[int]:
        """The ids of the pieces that a normalised text is divided into."""
        found: list[int] = []
        was_unknown = False
        for part, is_piece in self._divided(text):
            if is_piece:
                found.append(self._ids[part])
            elif self._byte_ids is not None:
                found += [self._byte_ids[byte] for byte in part.encode()]
            elif not was_unknown:
                found.append(self._unknown_id)
            was_unknown = not is_piece
        return found

    def _divided(self, text: str) -> Iterable[tuple[str, bool]]:
        """The parts in order, and whether each is a piece, or one unknown character."""
        begins, is_piece = self._best_ends(text)
        parts, end = [], len(text)
        while end:
            parts.append((text[begins[end] : end], bool(is_piece[end])))
            end = begins[end]
        return reversed(parts)

    def _best_ends(self, text: str) -> tuple[array[int], bytearray]:
        """For each place, where the last part of the best division up to it begins, and whether
        that part is a piece. A better sum replaces one that was found before, an equal one does
        not; an array of type `f` rounds what is stored to single precision."""
        best = array("f", [0.0]) * (len(text) + 1)
        begins, is_piece = array("q", [-1]) * (len(text) + 1), bytearray(len(text) + 1)
        rounded = array("f", [0.0])
        scores, unknown_score = self._scores, self._unknown_score
        for begin in range(len(text)):
            so_far = best[begin]
            has_single = False
            end = begin + 1
            while end <= len(text):
                score = scores.get(text[begin:end])
                if score is None:
                    break
                if score != _ONLY_A_PREFIX:
                    rounded[0] = score + so_far
                    total = rounded[0]
                    if begins[end] < 0 or total > best[end]:
                        best[end], begins[end], is_piece[end] = total, begin, True
                    has_single = has_single or end == begin + 1
                end += 1
            if not has_single:
                rounded[0] = unknown_score + so_far
                end = begin + 1
                if begins[end] < 0 or rounded[0] > best[end]:
                    best[end], begins[end], is_piece[end] = rounded[0], begin, False
        return begins, is_piece


def _scores(pieces: Iterable[Piece]) -> dict[str, float]:
    """The score of each piece, and `_ONLY_A_PREFIX` for texts that only begin one."""
    found: dict[str, float] = {}
    for piece in pieces:
        if piece.type not in (NORMAL, USER_DEFINED):
            continue
        for end in range(1, len(piece.text)):
            found.setdefault(piece.text[:end], _ONLY_A_PREFIX)
        found[piece.text] = piece.score if piece.type == NORMAL else _symbol_score(piece.text)
    return found


def _symbol_score(text: str) -> float:
    """Of a symbol that a user defined: better than that of any other piece. Measured with
    sentencepiece 0.2.3; versions before 0.2.2 had other constants."""
    return _single(len(text.encode()) * 0.1 - 0.1)


def _single(value: float) -> float:
    """Rounded to single precision."""
    return array("f", [value])[0]

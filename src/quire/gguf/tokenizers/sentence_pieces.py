"""The merges of a SentencePiece BPE vocabulary, which its file does not have, GGUF or not."""

from __future__ import annotations

import math
from pathlib import Path

from quire.errors import CheckpointError, quoted

_MAX_PIECE = 512
"""Characters of a piece: the work grows with their square."""
_MAX_PAIRS = 1 << 23


def derived_merges(path: Path, pieces: list[str], scores: list[float]) -> list[list[str]]:
    """Every way to make a piece of two others, those of the highest score first, and of
    these those with the longest left part.

    Source: transformers, `generate_merges`. Raises CheckpointError for a vocabulary that is too
    large for that, and for scores that have no order.
    """
    if not all(map(math.isfinite, scores)):
        raise CheckpointError(f"{path}: all scores of tokens must be finite numbers")
    ids = {piece: piece_id for piece_id, piece in enumerate(pieces)}
    found: list[tuple[float, int, int, int]] = []
    for piece, piece_id in ids.items():
        if len(piece) > _MAX_PIECE:
            raise CheckpointError(
                f"{path}: the token {quoted(piece)} has {len(piece)} characters; at most "
                f"{_MAX_PIECE} are read"
            )
        score = -scores[piece_id]
        for cut in range(1, len(piece)):
            if piece[:cut] in ids and piece[cut:] in ids:
                found.append((score, -cut, cut - len(piece), piece_id))
        if len(found) > _MAX_PAIRS:
            raise CheckpointError(f"{path}: the vocabulary has too many merges")
    found.sort(key=lambda pair: pair[:3])
    return [[pieces[piece][:-cut], pieces[piece][-cut:]] for _, cut, _, piece in found]

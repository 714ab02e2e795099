"""SentencePiece's BPE: the tokenizer of a GGUF file, and the merges of a vocabulary, which a file
of SentencePiece does not have, GGUF or not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError, quoted
from quire.gguf.keys import Keys
from quire.gguf.tokenizers.byte_pairs import bpe, merges_of

Json = dict[str, Any]

_NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5
_SPACE = "▁"
_MAX_PIECE = 512
"""Characters of a piece: the work grows with their square."""
_MAX_PAIRS = 1 << 21
"""Four times those of Gemma, whose vocabulary is the largest."""
_MAX_PAIR_CHARS = 1 << 25
"""Characters of all pairs together, eight times those of Gemma."""


def sentence_pieces(keys: Keys, tokens: list[str], *, has_prefix: bool | None = None) -> Json:
    """Files have runs of spaces as they are; they become marks in `tokens`. `has_prefix`: whether a
    space is put before a text, where the file does not say."""
    _mark_spaces(tokens)
    scores = keys.numbers("tokenizer.ggml.scores", float, len(tokens))
    pairs = merges_of(keys)
    if pairs is None:
        pairs = _derived_merges(keys, tokens, scores)
    says_prefix = keys.flag("tokenizer.ggml.add_space_prefix")
    if has_prefix is None:
        has_prefix = not keys.architecture.startswith("gemma")
    has_prefix = has_prefix if says_prefix is None else says_prefix
    to_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    from_spaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    normalizers = [{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []
    decoders: list[Json] = [from_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = bpe(tokens, pairs, ignore_merges=False)
    model |= {
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": keys.token_of("unknown", tokens),
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, to_spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _mark_spaces(tokens: list[str]) -> None:
    known = set(tokens)
    for token_id, text in enumerate(tokens):
        marks = _SPACE * len(text)
        if text and not text.strip(" ") and marks not in known:
            tokens[token_id] = marks


def _derived_merges(keys: Keys, tokens: list[str], scores: list[float] | None) -> list[list[str]]:
    """Gemma's pieces are ordered by id. Symbols that a user defined, such as runs of spaces, come
    before all others: SentencePiece finds them first, the longest at each place."""
    if scores is None or keys.architecture.startswith("gemma"):
        scores = [-float(token_id) for token_id in range(len(tokens))]
    kinds = keys.numbers("tokenizer.ggml.token_type", int, len(tokens)) or [_NORMAL] * len(tokens)
    first = max((*scores, 0.0)) + 1
    pieces = [
        (text, first if kind == _USER_DEFINED else score)
        for text, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind in (_NORMAL, _USER_DEFINED, _UNUSED)
    ]
    return derived_merges(keys.path, [text for text, _ in pieces], [score for _, score in pieces])


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
    num_chars = 0
    for piece, piece_id in ids.items():
        if len(piece) > _MAX_PIECE:
            raise CheckpointError(
                f"{path}: the token {quoted(piece)} has {len(piece)} characters; at most "
                f"{_MAX_PIECE} are read"
            )
        score, before = -scores[piece_id], len(found)
        for cut in range(1, len(piece)):
            if piece[:cut] in ids and piece[cut:] in ids:
                found.append((score, -cut, cut - len(piece), piece_id))
        num_chars += (len(found) - before) * len(piece)
        if len(found) > _MAX_PAIRS or num_chars > _MAX_PAIR_CHARS:
            raise CheckpointError(
                f"{path}: its pieces are made of two others in more than {_MAX_PAIRS} ways, or "
                f"with more than {_MAX_PAIR_CHARS} characters, which no known vocabulary needs"
            )
    found.sort(key=lambda pair: pair[:3])
    return [[pieces[piece][:-cut], pieces[piece][-cut:]] for _, cut, _, piece in found]

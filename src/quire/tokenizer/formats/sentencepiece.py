"""Builds the Rust tokenizer from SentencePiece's `tokenizer.model`: Llama, Mistral, Gemma, InternLM
and others. Called by `rust_tokenizer`.

A text gives the ids that the library sentencepiece gives, and symbols that a user defined are
found whole. Control tokens such as `<s>` in a text are those tokens, as in transformers; for the
library they are any other text. `legacy` of tokenizer_config.json puts the space that stands before
a text after every control token too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.gguf.tokenizers.sentence_pieces import derived_merges
from quire.tokenizer.formats.sentencepiece_model import (
    BPE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)
from quire.tokenizer.formats.sentencepiece_parts import library_model
from quire.tokenizer.growth import charsmap_growth, refuse_growth
from quire.tokenizer.pieces import library_errors

if TYPE_CHECKING:
    import tokenizers
    from sentencepiece import SentencePieceProcessor

_SPACE = "▁"
_NEVER = -1e6
"""The score of pieces that a text never gives."""


@dataclass(frozen=True, slots=True)
class BuiltSentencePiece:
    """The tokenizer that was built from a file."""

    backend: tokenizers.Tokenizer
    roles: dict[str, str]
    """Special tokens by role."""
    models: tuple[SentencePieceProcessor, SentencePieceProcessor] | None
    """The library's, for the first part of a text and for later ones, where `backend` gives other
    ids."""
    symbols: tuple[str, ...]
    """The pieces that a user defined."""


def build_sentencepiece(data: bytes, path: Path, config: Mapping[str, Any]) -> BuiltSentencePiece:
    """The tokenizer. `data`: of `path`; `config`: tokenizer_config.json. Raises CheckpointError."""
    from tokenizers import AddedToken, Tokenizer

    model = read_sentencepiece(data, path)
    prefix = config.get("add_prefix_space")
    adds_prefix = prefix if isinstance(prefix, bool) else model.adds_prefix
    is_legacy = config.get("legacy") is True
    defined = tuple(piece.text for piece in model.pieces if piece.type == USER_DEFINED)
    is_exact = _is_rust_exact(model, defined, adds_prefix)
    with library_errors(lambda words: CheckpointError(f"{path}: {words}")):
        backend = Tokenizer(_bpe(model, path) if model.kind == BPE else _unigram(model))
        _add_spaces(backend, model, adds_prefix, is_legacy=is_legacy)
        special = [piece.text for piece in model.pieces if piece.type in (CONTROL, UNKNOWN)]
        backend.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in special]
        )
        symbols = [
            AddedToken(text, special=False, normalized=is_exact and _SPACE in text)
            for text in defined
        ]
        backend.add_tokens(symbols)
    models = None
    if not is_exact:
        refuse_growth("precompiled_charsmap", charsmap_growth(model.charsmap), path)
        prefixes_each = adds_prefix and (is_legacy or model.removes_spaces)
        first = later = library_model(data, path, adds_prefix=adds_prefix)
        if adds_prefix and not prefixes_each:
            later = library_model(data, path, adds_prefix=False)
        models = first, later
    return BuiltSentencePiece(backend, {"unk_token": model.unknown, **model.roles}, models, defined)


def _is_rust_exact(model: SentencePieceModel, defined: Collection[str], adds_prefix: bool) -> bool:
    """Whether the Rust library gives the ids of the library sentencepiece.

    It normalises characters by grapheme, and the parts of a text between symbols that a user
    defined each for itself, without a space before the first symbol. It orders all merges, so that
    it cannot have equal scores, and adds the scores of a Unigram model in double precision.
    """
    if model.charsmap or model.kind != BPE or any(one.type == UNUSED for one in model.pieces):
        return False
    merged = [one.score for one in model.pieces if one.type == NORMAL and len(one.text) > 1]
    if len(set(merged)) < len(merged):
        return False
    return not (defined and (adds_prefix or model.removes_spaces))


def _bpe(model: SentencePieceModel, path: Path) -> tokenizers.models.Model:
    """Two neighbours become one where they are a piece, the one of the highest score first."""
    from tokenizers import models

    merged = [piece for piece in model.pieces if piece.type == NORMAL]
    texts, scores = [piece.text for piece in merged], [piece.score for piece in merged]
    return models.BPE(
        {piece.text: place for place, piece in enumerate(model.pieces)},
        [(left, right) for left, right in derived_merges(path, texts, scores)],
        unk_token=model.unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _unigram(model: SentencePieceModel) -> tokenizers.models.Model:
    """The pieces whose scores have the largest sum."""
    from tokenizers import models

    scores = [
        (piece.text, piece.score if piece.type in (NORMAL, USER_DEFINED) else _NEVER)
        for piece in model.pieces
    ]
    unknown = next(place for place, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
    return models.Unigram(scores, unk_id=unknown, byte_fallback=model.byte_fallback)


def _add_spaces(
    backend: tokenizers.Tokenizer, model: SentencePieceModel, adds_prefix: bool, *, is_legacy: bool
) -> None:
    """Add the conversion of a text's spaces, and the reverse one."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    steps: list[Any] = []
    if model.removes_spaces:
        removed = ((r"\A +", ""), (" {2,}", " "))
        steps += [normalizers.Replace(Regex(pattern), text) for pattern, text in removed]
    steps.append(normalizers.Replace(" ", _SPACE))
    if model.removes_spaces:
        steps.append(normalizers.Replace(Regex(rf"{_SPACE}+\z"), ""))
    # Where spaces are removed, the library no longer knows which part of a text is the first.
    in_each_part = is_legacy or model.removes_spaces
    if adds_prefix and in_each_part:
        steps.append(normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    if adds_prefix and not in_each_part:
        # The first step puts a space before every text, as none is left in it; Metaspace of marks
        # would put no mark before a mark.
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False),
                pre_tokenizers.Metaspace(_SPACE, prepend_scheme="never", split=False),
            ]
        )
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_prefix or model.removes_spaces:
        parts.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(parts)

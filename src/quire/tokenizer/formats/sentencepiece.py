"""Builds the Rust tokenizer from SentencePiece's `tokenizer.model`: Llama, Mistral, Gemma, InternLM
and others. Called by `rust_tokenizer`.

A text gives the ids that the library sentencepiece gives, and symbols that a user defined are
found whole. Control tokens such as `<s>` in a text are those tokens, as in transformers; for the
library they are any other text. `legacy` of tokenizer_config.json puts the space that stands before
a text after every control token too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.gguf.tokenizers.sentence_pieces import derived_merges
from quire.tokenizer.formats.charsmap import Charsmap
from quire.tokenizer.formats.ranked_merges import RankedMerges, has_one_order
from quire.tokenizer.formats.sentencepiece_model import (
    BPE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
    refused,
)
from quire.tokenizer.formats.sentencepiece_parts import PartEncoder
from quire.tokenizer.formats.unigram import UnigramPieces
from quire.tokenizer.library_errors import library_errors

if TYPE_CHECKING:
    import tokenizers

_SPACE = "▁"
_NEVER = -1e6
"""The score of pieces that a text never gives."""


@dataclass(frozen=True, slots=True)
class BuiltSentencePiece:
    """What a file gives."""

    backend: tokenizers.Tokenizer
    roles: dict[str, str]
    """Special tokens by role."""
    parts: PartEncoder | None
    """Gives the ids where `backend` gives others than the library sentencepiece."""
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
        bpe = _bpe(model, path) if model.kind == BPE else None
        backend = Tokenizer(bpe or _unigram(model))
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
        parts = None
        if not is_exact:
            charsmap = Charsmap(model.charsmap, defined, path)
            _check_spaces(model, defined, charsmap, path)
            parts = PartEncoder(
                charsmap,
                adds_prefix,
                is_legacy or model.removes_spaces,
                model.removes_spaces,
                _divides(model, bpe, symbols),
            )
    return BuiltSentencePiece(backend, {"unk_token": model.unknown, **model.roles}, parts, defined)


def _is_rust_exact(model: SentencePieceModel, defined: Collection[str], adds_prefix: bool) -> bool:
    """Whether the Rust library gives the ids of the library sentencepiece.

    It normalises characters by grapheme, and the parts of a text between symbols that a user
    defined each for itself, without a space before the first symbol.
    """
    if model.charsmap or model.kind != BPE or not has_one_order(model):
        return False
    return not (defined and (adds_prefix or model.removes_spaces))


def _check_spaces(
    model: SentencePieceModel, defined: Collection[str], charsmap: Charsmap, path: Path
) -> None:
    """Refuses spaces in a row that remove_extra_whitespaces keeps."""
    if model.removes_spaces and any(" " in text for text in defined):
        raise refused(path, "user-defined symbols with a space, and remove_extra_whitespaces")
    if model.removes_spaces and charsmap.has_spaces_in_a_row:
        raise refused(path, "spaces in a row in precompiled_charsmap, and remove_extra_whitespaces")


def _divides(
    model: SentencePieceModel,
    bpe: tokenizers.models.Model | None,
    symbols: Sequence[tokenizers.AddedToken],
) -> Callable[[str], list[int]]:
    """What divides normalised texts: the Rust library's merges alone, where they are exact."""
    from tokenizers import Tokenizer

    if bpe is None:
        return UnigramPieces(model).ids
    if not has_one_order(model):
        return RankedMerges(model).ids
    bare = Tokenizer(bpe)
    bare.add_tokens(list(symbols))
    return lambda text: bare.encode(text, add_special_tokens=False).ids


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
    """What happens to a text's spaces, there and back."""
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

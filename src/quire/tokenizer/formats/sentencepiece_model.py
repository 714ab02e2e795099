"""`SentencePieceModel`: what a SentencePiece `tokenizer.model` says.

Source of the fields' numbers and defaults: github.com/google/sentencepiece,
src/sentencepiece_model.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.errors import CheckpointError, quoted

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The types of pieces."""
UNIGRAM, BPE = 1, 2
"""The kinds of models that are read; others are whole words and single characters."""
_OTHER_KINDS = {3: "words", 4: "characters"}
_MAX_PIECES = 1 << 22
_NUM_BYTES = 256
MAX_PIECE_CHARS = 512
"""The memory of all prefixes of a piece grows with its square."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token; its id is its place in the model."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """Invariant: texts are unique, scores finite, and there is one piece of type UNKNOWN."""

    pieces: tuple[Piece, ...]
    kind: int
    """UNIGRAM or BPE."""
    unknown: str
    byte_fallback: bool
    """A character without a piece becomes one piece for each byte."""
    charsmap: bytes
    """Normalisation of characters, as SentencePiece has compiled it; empty: there is none."""
    adds_prefix: bool
    """A space is put before a text."""
    removes_spaces: bool
    """Spaces at the ends of a text are left out, and of several in a row all but one."""
    roles: dict[str, str]
    """The tokens for begin, end and padding, by `bos_token`, `eos_token` and `pad_token`."""


@dataclass(slots=True)
class _Fields:
    """The last value of each field of a section, by its number."""

    numbers: dict[int, int]
    texts: dict[int, bytes]

    def flag(self, number: int, default: bool) -> bool:
        return bool(self.numbers.get(number, default))


def read_sentencepiece(data: bytes, path: Path) -> SentencePieceModel:
    """Raises CheckpointError for a file that is damaged, or has what Quire does not compute."""
    pieces: list[Piece] = []
    sections: dict[int, list[bytes]] = {}
    for number, kind, value in fields(data, str(path)):
        if kind != BYTES or not isinstance(value, bytes):
            raise CheckpointError(f"{path}: unknown field {number} in a SentencePiece model")
        if number == 1:
            pieces.append(_piece(value, path))
            if len(pieces) > _MAX_PIECES:
                raise CheckpointError(f"{path}: more than {_MAX_PIECES} pieces")
        else:
            sections.setdefault(number, []).append(value)
    trainer, normalizer, denormalizer = (_section(sections, n, path) for n in (2, 3, 5))
    _check_pieces(pieces, path)
    _check_kind(trainer, normalizer, denormalizer, path)
    unknown = [piece.text for piece in pieces if piece.type == UNKNOWN]
    return SentencePieceModel(
        pieces=tuple(pieces),
        kind=trainer.numbers.get(3, UNIGRAM),
        unknown=unknown[0],
        byte_fallback=_has_bytes(pieces, trainer, path),
        charsmap=normalizer.texts.get(2, b""),
        adds_prefix=normalizer.flag(3, True),
        removes_spaces=normalizer.flag(4, True),
        roles=_roles(pieces, trainer, path),
    )


def _piece(data: bytes, path: Path) -> Piece:
    text, score, type = b"", 0.0, NORMAL
    for number, kind, value in fields(data, str(path)):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and kind == FIXED32 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            type = value
    return Piece(_decoded(text, path), score, type)


def _decoded(raw: bytes, path: Path) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise CheckpointError(f"{path}: {quoted(raw)} is no UTF-8 text") from None


def _section(sections: dict[int, list[bytes]], number: int, path: Path) -> _Fields:
    found = _Fields({}, {})
    for data in sections.get(number, ()):
        for name, kind, value in fields(data, str(path)):
            if kind == VARINT and isinstance(value, int):
                found.numbers[name] = value
            elif isinstance(value, bytes):
                found.texts[name] = value
    return found


def _check_pieces(pieces: list[Piece], path: Path) -> None:
    if not pieces:
        raise CheckpointError(f"{path}: a SentencePiece model must have pieces")
    seen: set[str] = set()
    for piece in pieces:
        if not piece.text or piece.text in seen:
            words = "is there twice" if piece.text else "is empty"
            raise CheckpointError(f"{path}: the piece {quoted(piece.text)} {words}")
        seen.add(piece.text)
        if len(piece.text) > MAX_PIECE_CHARS:
            raise CheckpointError(
                f"{path}: the token {quoted(piece.text)} has {len(piece.text)} characters; at most "
                f"{MAX_PIECE_CHARS} are read"
            )
        if not math.isfinite(piece.score) or not NORMAL <= piece.type <= BYTE:
            raise CheckpointError(
                f"{path}: the piece {quoted(piece.text)} has score {piece.score} and type "
                f"{piece.type}; scores are finite, types from {NORMAL} to {BYTE}"
            )
    if (count := sum(piece.type == UNKNOWN for piece in pieces)) != 1:
        raise CheckpointError(f"{path}: {count} pieces stand for what is unknown; 1 has to")


def _check_kind(trainer: _Fields, normalizer: _Fields, denormalizer: _Fields, path: Path) -> None:
    """Raises CheckpointError for what is not computed."""
    kind = trainer.numbers.get(3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise refused(path, f"pieces that are {_OTHER_KINDS.get(kind, f'of kind {kind}')}")
    if trainer.flag(24, False):
        raise refused(path, "a space at the end of a text (treat_whitespace_as_suffix)")
    if not normalizer.flag(5, True):
        raise refused(path, "spaces that stay as they are (escape_whitespaces)")
    if denormalizer.texts.get(2):
        raise refused(path, "a normalisation of decoded texts (denormalizer_spec)")


def refused(path: Path, what: str) -> CheckpointError:
    """The error about a model that Quire does not compute; the caller raises it."""
    return CheckpointError(
        f"{path}: {what}: SentencePiece models with it are not read; write a tokenizer.json to the "
        "directory with transformers: AutoTokenizer.from_pretrained(path).save_pretrained(path)"
    )


def _has_bytes(pieces: list[Piece], trainer: _Fields, path: Path) -> bool:
    """`byte_fallback`, if there is a piece for each byte."""
    if not trainer.flag(35, False):
        return False
    texts = {piece.text for piece in pieces if piece.type == BYTE}
    if missing := {f"<0x{byte:02X}>" for byte in range(_NUM_BYTES)} - texts:
        raise CheckpointError(
            f"{path}: byte_fallback requires a piece {min(missing)} of type {BYTE}"
        )
    return True


def _roles(pieces: list[Piece], trainer: _Fields, path: Path) -> dict[str, str]:
    """Those that are control pieces; the names are fields 46 to 48 of the trainer's section."""
    controls = {piece.text for piece in pieces if piece.type == CONTROL}
    names = {"bos_token": (46, b"<s>"), "eos_token": (47, b"</s>"), "pad_token": (48, b"<pad>")}
    texts = {
        role: _decoded(trainer.texts.get(number, default), path)
        for role, (number, default) in names.items()
    }
    return {role: text for role, text in texts.items() if text in controls}


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The kinds of values that are in use."""
_SIZES = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10

Field = tuple[int, int, "int | bytes"]
"""Number, kind, value: a whole number of a VARINT, bytes of the others."""


def fields(data: bytes, source: str) -> Iterator[Field]:
    """The fields of a message of protocol buffers in order. Raises CheckpointError, naming
    `source`, if the bytes are not a message. Source: https://protobuf.dev/programming-guides."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place, source)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _varint(data, place, source)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, place = _varint(data, place, source)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise CheckpointError(f"{source}: a field has kind {kind}, which is not in use")
        end = place + size
        if end > len(data):
            raise CheckpointError(
                f"{source}: a field of {size} bytes begins at {place}, and the message ends at "
                f"{len(data)}: it is truncated, or no protocol buffers message"
            )
        yield number, kind, data[place:end]
        place = end


def _varint(data: bytes, place: int, source: str) -> tuple[int, int]:
    """The number at `place`, with seven bits per byte, and the place after it."""
    value = shift = 0
    for byte in data[place : place + _MAX_VARINT_BYTES]:
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise CheckpointError(f"{source}: a number at {place} does not end")

"""Reads the arrays of a CTranslate2 `model.bin`: where each lies in the file, not its numbers.

Source: CTranslate2, src/models/model.cc (`Model::load`) and python/ctranslate2/specs/model_spec.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.gguf.block_types import BY_NAME
from quire.gguf.byte_reader import ByteReader, opened
from quire.gguf.container import GgufTensor

_SPEC = "WhisperSpec"
_VERSIONS = range(4, 7)
"""Versions in which an array has its type, and its length in bytes."""
_REVISIONS = range(1, 4)
_TYPES = ("F32", "I8", "I16", "I32", "F16", "BF16")
"""Types by their number in the file."""
_MOST_ARRAYS = 1 << 16
_MOST_DIMS = 8
_MOST_VERSIONS = 100


@dataclass(frozen=True, slots=True)
class Ct2File:
    """The arrays of a file."""

    path: Path
    arrays: Mapping[str, GgufTensor]
    """Without aliases. The shape of a number is empty."""
    numbers: Mapping[str, int]
    """Whole numbers that are not in arrays, such as the number of heads."""
    aliases: Mapping[str, str]
    """Further names of arrays."""


def spec_of(path: Path) -> str | None:
    """The kind of model that a `model.bin` holds, such as WhisperSpec; None: it is not a file of
    CTranslate2. The file need not be complete."""
    with suppress(OSError, ValueError, struct.error), path.open("rb") as file:
        version, length = struct.unpack("<IH", file.read(6))
        if 2 <= version < _MOST_VERSIONS and 2 <= length <= 64:
            name = file.read(length)
            if len(name) == length and name.endswith(b"\0") and name[:-1].isalnum():
                return name[:-1].decode("ascii")
    return None


def read_ct2(path: Path) -> Ct2File:
    """Raises CheckpointError for a damaged file, and UnsupportedModelError for one of another
    model."""
    with opened(path) as reader:
        return _read(reader, path)


def _read(reader: ByteReader, path: Path) -> Ct2File:
    version, spec = reader.number("I"), ""
    if version in _VERSIONS:
        spec = _text(reader, "the kind of model")
    if version not in _VERSIONS or (spec == _SPEC and reader.number("I") not in _REVISIONS):
        raise UnsupportedModelError(
            f"{path}: a file of CTranslate2 of a version or revision that is not read (version "
            f"{version}; {_VERSIONS[0]} to {_VERSIONS[-1]} are read); convert the model again"
        )
    if spec != _SPEC:
        raise UnsupportedModelError(
            f"{path}: a CTranslate2 model of kind {quoted(spec)}; of CTranslate2's models, only "
            "those of Whisper are read"
        )
    count = reader.number("I")
    if count > _MOST_ARRAYS:
        raise reader.error(f"there are {count} arrays; at most {_MOST_ARRAYS} are read")
    arrays: dict[str, GgufTensor] = {}
    numbers: dict[str, int] = {}
    for _ in range(count):
        array = _array(reader)
        if array.name in arrays:
            raise reader.error(f"array {quoted(array.name)} is there twice")
        arrays[array.name] = array
        if not array.shape and array.type.name.startswith("I"):
            raw = reader.raw(array.num_bytes)
            numbers[array.name] = int.from_bytes(raw, "little", signed=True)
        else:
            reader.skip(array.num_bytes)
    aliases = _aliases(reader, arrays)
    if reader.position != reader.size:
        left = reader.size - reader.position
        raise reader.error(f"{left} bytes follow the last array: the header is wrong")
    return Ct2File(path, arrays, numbers, aliases)


def _array(reader: ByteReader) -> GgufTensor:
    name = _text(reader, "the name of an array")
    what = f"array {quoted(name)}"
    num_dims = reader.number("B")
    if num_dims > _MOST_DIMS:
        raise reader.error(f"{what} has {num_dims} dimensions; at most {_MOST_DIMS} are read")
    shape = tuple(reader.number("I") for _ in range(num_dims))
    code, num_bytes = reader.number("B"), reader.number("I")
    if code >= len(_TYPES):
        raise reader.error(f"{what} is of type {code}, which is not known")
    type = BY_NAME[_TYPES[code]]
    if prod(shape) * type.block_bytes != num_bytes:
        raise reader.error(
            f"{what}: {type.name} {list(shape)} takes {prod(shape) * type.block_bytes} bytes, not "
            f"{num_bytes}"
        )
    return GgufTensor(name, shape, type, reader.position, num_bytes)


def _aliases(reader: ByteReader, arrays: Mapping[str, GgufTensor]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    count = reader.number("I")
    if count > _MOST_ARRAYS:
        raise reader.error(f"there are {count} aliases; at most {_MOST_ARRAYS} are read")
    for _ in range(count):
        alias, name = _text(reader, "an alias"), _text(reader, "the name of an array")
        if alias in arrays or alias in aliases or name not in arrays:
            raise reader.error(f"alias {quoted(alias)} of {quoted(name)} cannot be")
        aliases[alias] = name
    return aliases


def _text(reader: ByteReader, what: str) -> str:
    """The next text, which ends with a zero byte. Raises CheckpointError."""
    raw = reader.raw(reader.number("H"))
    if not raw.endswith(b"\0") or not raw[:-1].isascii() or not raw[:-1].decode().isprintable():
        raise _no_text(reader, what, raw)
    return raw[:-1].decode()


def _no_text(reader: ByteReader, what: str, raw: bytes) -> CheckpointError:
    return reader.error(f"{what} is {quoted(raw[:40])}, which must be ASCII with a zero at its end")

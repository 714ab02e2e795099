"""The packed weights file: weights in the memory layout of a backend's kernels.

Written by `quire quantize`, memory-mapped at load and used in place. This module reads and writes
sections of bytes and checks the file's structure. The backend defines the meaning of the bytes: it
describes each section by a `layout` name, which must match at load. Format: docs/packed_weights.md.

    0        magic, version, offset and length of the header, SHA-256 of the header    64 bytes
    4096     sections, each at a multiple of 64
    end      the header: JSON
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.units import MiB
from quire.version import __version__
from quire.weights.mapped_file import MappedFile

PACKED_NAME = "model.quire"
"""The file's name in a model directory."""

FORMAT_VERSION = 3
_READABLE_VERSIONS = (1, 2, 3)
"""Version 1 does not list the tensors that are not finite; 1 and 2 have no calibration."""
_MAGIC = b"\x89QUIRE\r\n"
_PREFIX = struct.Struct("<8sIIQQ32s")
_FIRST_SECTION = 4096
_ALIGNMENT = 64
_CHUNK_BYTES = 8 * MiB
_MAX_HEADER_BYTES = 64 * MiB
_PACK_AGAIN = "pack the model again, on this machine: quire quantize MODEL OUT"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One weight. `offset` counts from the start of the file."""

    name: str
    layout: str
    """The backend's name for the memory layout of the bytes."""
    tensors: tuple[str, ...]
    """Names of the checkpoint's tensors in this section, in order."""
    offset: int
    num_bytes: int
    not_finite: tuple[str, ...] = ()
    """The tensors that hold a NaN or an infinity."""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source of the factors of columns, for a model that was packed with such factors."""

    file: str
    """Name of the text or the imatrix, without its directory."""
    sha256: str
    num_tokens: int
    """Tokens of the text that were read; 0: it was an imatrix."""
    num_scaled: int
    """Values whose columns have factors."""
    num_values: int
    """Values whose columns can have them."""

    def __str__(self) -> str:
        what = f"the first {self.num_tokens:,} tokens" if self.num_tokens else "imatrix"
        return (
            f"{self.file} ({what}, sha256 {self.sha256[:12]}), columns of {self.num_scaled} of "
            f"{self.num_values} values scaled"
        )


class PackedHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's header."""

    quire_version: str
    """The version of Quire that wrote the file."""
    isa: str
    """The instruction-set tier that the weights were packed for."""
    dtype: str
    quantization: str | None
    sections: tuple[Section, ...]
    calibration: Calibration | None = None


def read_packed_header(path: Path) -> PackedHeader:
    """Reads the header alone. Raises CheckpointError if the file is not a packed file."""
    return _read_header(MappedFile(path))


class PackedFile:
    """A mapped packed file. Invariant: the sections are inside the file and do not overlap.

    Views of sections keep the mapping alive. It is read-only; all processes that map the file share
    its pages.
    """

    def __init__(self, path: Path) -> None:
        """Reads and checks the header alone. Raises CheckpointError."""
        self.path = path
        self._file = MappedFile(path)
        self.header = _read_header(self._file)
        self._sections = {section.name: section for section in self.header.sections}

    def section(
        self, name: str, tensors: tuple[str, ...], layouts: Collection[str], num_bytes: int
    ) -> NDArray[np.uint8]:
        """Return the bytes of a weight.

        Raises CheckpointError, which names the command to pack again, unless the section consists
        of `tensors`, has one of `layouts`, and has `num_bytes`.
        """
        section = self._sections.get(name)
        if section is None:
            raise CheckpointError(f"{self.path}: there is no {name}; {_PACK_AGAIN}")
        if section.tensors != tensors:
            raise CheckpointError(
                f"{self.path}: {name} must consist of {', '.join(tensors)}, but consists of "
                f"{', '.join(section.tensors)}; {_PACK_AGAIN}"
            )
        if section.layout not in layouts:
            raise CheckpointError(
                f"{self.path} was packed for another machine (tier {self.header.isa}, Quire "
                f"{self.header.quire_version}): {name} has the layout {section.layout!r}, this "
                f"machine needs {' or '.join(map(repr, layouts))}; {_PACK_AGAIN}"
            )
        if section.num_bytes != num_bytes:
            raise CheckpointError(
                f"{self.path}: {name} has {section.num_bytes} bytes, not {num_bytes}; {_PACK_AGAIN}"
            )
        return self._file.slice(section.offset, section.num_bytes)

    @property
    def not_finite(self) -> list[str]:
        """The checkpoint's tensors that hold a NaN or an infinity, found when the file was
        packed."""
        return [name for section in self.header.sections for name in section.not_finite]

    def num_bytes(self, name: str) -> int:
        """Bytes of a section; 0 where there is none."""
        section = self._sections.get(name)
        return 0 if section is None else section.num_bytes

    def tensors(self, name: str) -> tuple[str, ...]:
        """The tensors of a section; none where there is no section."""
        section = self._sections.get(name)
        return () if section is None else section.tensors

    def populate(self, names: Iterable[str]) -> None:
        """Reads and maps these sections now, in huge pages if the file system supports them.
        Without this call, the first step would read them page by page."""
        begin = end = 0
        for one in sorted((self._sections[name] for name in names), key=lambda one: one.offset):
            if one.offset - end >= _ALIGNMENT:
                self._file.populate(begin, end - begin)
                begin = one.offset
            end = one.offset + one.num_bytes
        self._file.populate(begin, end - begin)

    def release(self, name: str) -> None:
        """Drops the pages of a section from the resident set; the next access reads them again."""
        section = self._sections[name]
        self._file.release(section.offset, section.num_bytes)

    def check(self) -> None:
        """Raises CheckpointError if the file changed since it was opened, or could not be read.

        Called after each use of its sections; costs about a microsecond.
        """
        self._file.check()

    def close(self) -> None:
        """Forgets the sections; existing views stay valid, and `check` still works."""
        self._sections = {}


class PackedWriter:
    """Writes sections one by one; then call `finish`.

    Writes in large aligned chunks, so that ext4 and xfs can keep the file in huge pages: a mapping
    of the file is then as fast to read as other memory.
    """

    def __init__(self, file: BinaryIO) -> None:
        """`file` must be empty and at position 0."""
        self._file = file
        self._sections: list[Section] = []
        self._chunk = np.zeros(_CHUNK_BYTES, np.uint8)
        self._filled = _FIRST_SECTION
        """Bytes of `_chunk` that are not written to the file yet."""

    def add(
        self,
        name: str,
        tensors: tuple[str, ...],
        layout: str,
        data: NDArray[np.uint8],
        not_finite: tuple[str, ...] = (),
    ) -> None:
        """Writes one weight. `not_finite`: its tensors that hold a NaN or an infinity."""
        self._write(np.zeros(-self._position() % _ALIGNMENT, np.uint8))
        section = Section(name, layout, tensors, self._position(), data.nbytes, not_finite)
        self._write(data)
        self._sections.append(section)

    def finish(
        self, isa: str, dtype: str, quantization: str | None, calibration: Calibration | None = None
    ) -> PackedHeader:
        """Writes the header, then the prefix. A file without the prefix is refused when read."""
        sections = tuple(self._sections)
        header = PackedHeader(__version__, isa, dtype, quantization, sections, calibration)
        text = msgspec.json.encode(header)
        offset = self._position()
        self._write(np.frombuffer(text, np.uint8))
        self._file.write(self._chunk[: self._filled].data)
        digest = hashlib.sha256(text).digest()
        self._file.seek(0)
        self._file.write(_PREFIX.pack(_MAGIC, FORMAT_VERSION, 0, offset, len(text), digest))
        return header

    def _position(self) -> int:
        """Offset of the next byte."""
        return self._file.tell() + self._filled

    def _write(self, data: NDArray[np.uint8]) -> None:
        while data.size:
            piece = data[: _CHUNK_BYTES - self._filled]
            self._chunk[self._filled :][: piece.size] = piece
            self._filled += piece.size
            data = data[piece.size :]
            if self._filled == _CHUNK_BYTES:
                self._file.write(self._chunk.data)
                self._filled = 0


def _read_header(file: MappedFile) -> PackedHeader:
    path = file.path
    if file.size < _FIRST_SECTION:
        raise CheckpointError(f"{path}: {file.size} bytes are too few for packed weights")
    magic, version, _, offset, length, digest = _PREFIX.unpack(file.bytes(0, _PREFIX.size))
    if magic != _MAGIC:
        raise CheckpointError(f"{path}: must be packed weights, written by quire quantize")
    if version not in _READABLE_VERSIONS:
        raise CheckpointError(
            f"{path}: packed in version {version} of the format, but this Quire "
            f"({__version__}) reads {', '.join(map(str, _READABLE_VERSIONS))}; "
            f"{_PACK_AGAIN}"
        )
    if length > _MAX_HEADER_BYTES or offset + length != file.size:
        raise CheckpointError(
            f"{path}: the header must end at byte {offset + length}, but the file has "
            f"{file.size} bytes; it is truncated or damaged"
        )
    text = file.bytes(offset, length)
    if hashlib.sha256(text).digest() != digest:
        raise CheckpointError(f"{path}: the header is damaged; {_PACK_AGAIN}")
    try:
        header = msgspec.json.decode(text, type=PackedHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header cannot be read: {error}") from None
    _check_sections(path, header.sections, offset)
    return header


def _check_sections(path: Path, sections: tuple[Section, ...], end: int) -> None:
    """Raises CheckpointError unless the sections are aligned, sorted, disjoint, end by `end`, and
    have different names."""
    position = _FIRST_SECTION
    names: set[str] = set()
    for section in sections:
        if section.offset % _ALIGNMENT or section.offset < position or section.num_bytes < 1:
            raise CheckpointError(
                f"{path}: {section.name!r} begins at byte {section.offset} and has "
                f"{section.num_bytes} bytes: it is empty, not aligned, or overlaps the one before"
            )
        position = section.offset + section.num_bytes
        if position > end:
            raise CheckpointError(
                f"{path}: {section.name!r} ends at byte {position}, after the weights' end {end}"
            )
        if section.name in names:
            raise CheckpointError(f"{path}: {section.name!r} is there twice")
        names.add(section.name)

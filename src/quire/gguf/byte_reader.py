"""`ByteReader`: numbers and texts from the begin of a file, each checked against what is left."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError
from quire.units import MiB, format_bytes

MAX_HEADER_BYTES = 512 * MiB
"""Far more than any vocabulary takes."""
_WINDOW_BYTES = MiB
_SMALL_WINDOW_BYTES = 1 << 12
_LENGTH = struct.Struct("<Q")
_STRUCTS = {letter: struct.Struct(f"<{letter}") for letter in "BbHhIifQqd"}


class ByteReader:
    """Reads forward through windows of the file, so that memory holds little of it at once."""

    def __init__(self, descriptor: int, source: str, *, window_bytes: int = _WINDOW_BYTES) -> None:
        """`source` names the file in messages. Raises CheckpointError unless it is a regular
        file."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{source} must be a regular file")
        self._descriptor = descriptor
        self._source = source
        self.size = status.st_size
        self._window = b""
        self._begin = 0
        """Offset of the window in the file."""
        self._next = 0
        """The next byte's index in the window."""
        self._window_bytes = window_bytes
        self._num_skipped = 0

    @property
    def position(self) -> int:
        """The offset of the next byte."""
        return self._begin + self._next

    def error(self, words: str) -> CheckpointError:
        """The error that says this of the file; the caller raises it."""
        return CheckpointError(f"{self._source}: {words}")

    def raw(self, count: int) -> bytes:
        """The next `count` bytes."""
        self._need(count)
        begin = self._next
        self._next += count
        return self._window[begin : self._next]

    def skip(self, count: int) -> None:
        """Passes over `count` bytes, which are not read."""
        left = self.size - self.position
        if count > left:
            raise self._truncated(count)
        self._num_skipped += count
        if self._next + count <= len(self._window):
            self._next += count
        else:
            self._begin, self._next, self._window = self.position + count, 0, b""

    def number(self, letter: str) -> Any:
        """The next number, by the letter of the struct module."""
        form = _STRUCTS[letter]
        self._need(form.size)
        (value,) = form.unpack_from(self._window, self._next)
        self._next += form.size
        return value

    def count(self, maximum: int, item_bytes: int, what: str) -> int:
        """The next number as a count of things that take at least `item_bytes` each."""
        count: int = self.number("Q")
        if count > maximum or count * item_bytes > self.size - self.position:
            left = format_bytes(self.size - self.position)
            raise self.error(
                f"{count} {what} cannot be: {left} of the file are left, and at most {maximum} "
                "are read"
            )
        return count

    def text(self, max_bytes: int | None, what: str) -> str:
        """The next text, of at most `max_bytes`."""
        length = self.number("Q")
        if max_bytes is not None and length > max_bytes:
            raise self.error(f"{what} has {length} bytes; at most {max_bytes} are read")
        return self._decoded(self.raw(length), what)

    def texts(self, count: int, what: str) -> list[str]:
        """The next `count` texts."""
        found = []
        for _ in range(count):
            if len(self._window) - self._next < 8:
                self._need(8)
            (length,) = _LENGTH.unpack_from(self._window, self._next)
            begin = self._next + 8
            end = begin + length
            if end > len(self._window):
                self._need(8 + length)
                begin, end = self._next + 8, self._next + 8 + length
            self._next = end
            found.append(self._decoded(self._window[begin:end], what))
        return found

    def _decoded(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is no UTF-8 text: {error.reason}") from None

    def _need(self, count: int) -> None:
        """Makes the window hold the next `count` bytes. Raises CheckpointError."""
        if len(self._window) - self._next >= count:
            return
        left = self.size - self.position
        if count > left:
            raise self._truncated(count)
        if self.position - self._num_skipped + count > MAX_HEADER_BYTES:
            raise self.error(f"the header has more than {format_bytes(MAX_HEADER_BYTES)}")
        self._begin, self._window = self.position, self._window[self._next :]
        self._next = 0
        wanted = min(max(count, self._window_bytes), left)
        while len(self._window) < wanted:
            offset = self._begin + len(self._window)
            try:
                piece = os.pread(self._descriptor, wanted - len(self._window), offset)
            except OSError as error:
                raise self.error(f"cannot be read: {error.strerror}") from None
            if not piece:
                raise self.error("the file was cut short while it was read")
            self._window += piece

    def _truncated(self, count: int) -> CheckpointError:
        return self.error(
            f"{count} bytes are to follow at {self.position}, and the file has "
            f"{self.size - self.position} more: it is truncated, or the header is wrong"
        )


@contextmanager
def opened(path: Path) -> Iterator[ByteReader]:
    """A reader of a file whose header lies between its data, so that it reads little at a time.
    Raises CheckpointError for a file that cannot be read."""
    descriptor = open_file(path)
    try:
        yield ByteReader(descriptor, str(path), window_bytes=_SMALL_WINDOW_BYTES)
    finally:
        os.close(descriptor)


def open_file(path: Path) -> int:
    """The descriptor of a file. Raises CheckpointError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"{path}: cannot be read: {reason}") from None

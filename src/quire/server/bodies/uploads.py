"""`Upload`: a file of a form, in memory or in a temporary file; `UploadSpace`: the temporary files
of a server, which are bounded together."""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.server.http.problems import HttpError, unavailable
from quire.system.at_exit import make_scratch
from quire.units import MiB

SPOOLED_BYTES = 1 * MiB
"""Larger bodies and files are not kept in memory."""


class SpooledFile:
    """A temporary file. It is deleted when it is closed, at the latest with this object."""

    def __init__(self, space: UploadSpace, directory: str) -> None:
        self._space, self.size = space, 0
        self._file = tempfile.NamedTemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self.path = Path(self._file.name)

    def write(self, data: bytes | bytearray) -> None:
        """Adds to its end. Raises HttpError 503 if all files together have too many bytes, or the
        disk has no room."""
        self._space.take(len(data))
        self.size += len(data)
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            what = f"{self.path.parent}: {error.strerror}"
            raise HttpError(unavailable(f"A file cannot be kept in {what}.", 60)) from None

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._file.fileno()

    def close(self) -> None:
        """Deletes the file. Idempotent."""
        self._space.take(-self.size)
        self.size = 0
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


class Upload:
    """A file of a form."""

    __slots__ = ("_file", "source")

    def __init__(self, source: bytes | SpooledFile) -> None:
        self._file = source if isinstance(source, SpooledFile) else None
        self.source: bytes | Path = source if isinstance(source, bytes) else source.path
        """Its bytes, or the place of a temporary file that exists while this object does."""

    def bytes(self, most: int) -> bytes | None:
        """Its bytes; None if they are more than `most`."""
        if isinstance(self.source, bytes):
            return self.source if len(self.source) <= most else None
        with self.source.open("rb") as file:
            data = file.read(most + 1)
        return data if len(data) <= most else None

    def close(self) -> None:
        """Frees it."""
        self.source = b""
        if self._file is not None:
            self._file.close()


@contextmanager
def freed_on_error(values: Iterable[object]) -> Iterator[None]:
    """Frees the uploads among some values if the block raises: an exception may outlive it."""
    try:
        yield
    except BaseException:
        for value in values:
            if isinstance(value, Upload):
                value.close()
        raise


class UploadSpace:
    """The temporary files of one server. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of all files together."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._directory: str | None = None
        self._lock = threading.Lock()

    def file(self) -> SpooledFile:
        """A new file. Raises OSError."""
        with self._lock:
            self._directory = self._directory or make_scratch()
        return SpooledFile(self, self._directory)

    def copied(self, body: bytearray | mmap.mmap, part: range) -> Upload:
        """A file with a part of a body. Raises HttpError 503, OSError."""
        file = self.file()
        for begin in range(part.start, part.stop, SPOOLED_BYTES):
            file.write(body[begin : min(begin + SPOOLED_BYTES, part.stop)])
        return Upload(file)

    def take(self, num_bytes: int) -> None:
        """Counts bytes of a file; a negative number gives them back. Raises HttpError 503."""
        with self._lock:
            if num_bytes > 0 and self._num_bytes + num_bytes > self._max_bytes:
                raise HttpError(unavailable("Too many files are being sent to this server.", 5))
            self._num_bytes += num_bytes

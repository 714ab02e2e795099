"""From a URL to the bytes of a file, as far as the configuration allows it.

`data:` URLs hold the bytes. `file://` URLs must point below a configured folder, and others to
configured domains (`fetch.py`). All front ends use this code, `run-batch` too. Blocks; any thread.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quire.errors import RequestError, quoted
from quire.images.config import ImagesConfig
from quire.images.fetch import Fetcher
from quire.images.job import MAX_FILE_BYTES, MAX_FRAMES
from quire.images.time_limit import TimeLimit
from quire.param_checks import base64_bytes
from quire.units import format_bytes

_MAX_TEXT = MAX_FILE_BYTES * 4 // 3 + 4
"""Most characters of base64."""


class DownloadLimit:
    """How many bytes the files of one request may have together, if they are fetched."""

    def __init__(self, num_bytes: int) -> None:
        """0: any number."""
        self._most = self._left = num_bytes

    def spend(self, num_bytes: int) -> None:
        """Counts a file. Raises RequestError if no more is left."""
        self._left -= num_bytes
        if self._most and self._left < 0:
            raise RequestError(
                "the files that one request names by URLs must have at most "
                f"{format_bytes(self._most)} together "
                "(VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB): send fewer or smaller ones"
            )


@dataclass(frozen=True, slots=True)
class ImageSources:
    """Reads the files that a configuration allows."""

    config: ImagesConfig
    fetcher: Fetcher
    limit: TimeLimit
    downloads: DownloadLimit

    @classmethod
    def of(cls, config: ImagesConfig, seconds: float = inf) -> ImageSources:
        """With a fetcher for the configured domains. `seconds`: time for all files."""
        downloads = DownloadLimit(config.download_bytes)
        return cls(config, Fetcher(config.domains), TimeLimit(seconds), downloads)

    def read(self, url: str) -> bytes:
        """The bytes of the file. Raises RequestError."""
        scheme = url.partition(":")[0].lower()
        if scheme == "data":
            return _data(url)
        if scheme == "file":
            return self._file(url)
        if scheme in ("http", "https"):
            begin = time.monotonic()
            found = self.fetcher.fetch(url)
            self.limit.spend(time.monotonic() - begin)
            self.downloads.spend(len(found))
            return found
        raise RequestError(
            f"The URL must be either a HTTP, data or file URL, got {quoted(url[:80])}."
        )

    def read_frames(self, url: str) -> list[bytes]:
        """The files of a video's frames (`data:video/jpeg;base64,FRAME,FRAME`), or one file. Raises
        RequestError."""
        head, comma, text = url.partition(",")
        if head.lower() != "data:video/jpeg;base64":
            return [self.read(url)]
        if len(text) > _MAX_TEXT or text.count(",") >= MAX_FRAMES:
            raise RequestError(
                f"a video must have at most {MAX_FRAMES} frames and {format_bytes(MAX_FILE_BYTES)}"
            )
        return [_data(head + comma + frame) for frame in text.split(",")]

    def _file(self, url: str) -> bytes:
        folder = self.config.local_path
        if not folder:
            raise RequestError("Cannot load local files without `--allowed-local-media-path`.")
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise RequestError("a file URL must have the form file:///folder/file.png")
        try:
            # Links are followed here once, and the file that is opened must be no link.
            path = Path(unquote(parts.path)).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise _no_file(folder) from None
        if not path.is_relative_to(folder):
            raise _no_file(folder)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise _no_file(folder) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _no_file(folder)
        with os.fdopen(descriptor, "rb") as file:
            real = Path(os.path.realpath(f"/proc/self/fd/{descriptor}"))
            if Path("/proc/self/fd").exists() and not real.is_relative_to(folder):
                raise _no_file(folder)
            return checked_size(file.read(MAX_FILE_BYTES + 1))


def checked_size(data: bytes) -> bytes:
    """The same bytes. Raises RequestError if they are more than a file may have."""
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(
            f"the file is too large: at most {format_bytes(MAX_FILE_BYTES)} are read"
        )
    return data


def _no_file(folder: str) -> RequestError:
    """One error for all paths, so that it does not tell which files exist."""
    return RequestError(
        f"a file URL must point to a file below {folder} (allowed_local_media_path)"
    )


def _data(url: str) -> bytes:
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise RequestError("Only base64 data URLs are supported for now.")
    try:
        return checked_size(base64_bytes(text))
    except ValueError:
        raise RequestError("a data URL must hold valid base64") from None

"""Fetches the large files of a repository, and goes on where an earlier process has ended.

huggingface_hub begins each file anew in every process. A file that is here in its cache, named by
its checksum, is not fetched by it again.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError, ConfigError
from quire.log import get_logger
from quire.units import format_bytes

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIECE = 1 << 22
_SUFFIX = ".incomplete"
_MAX_HTTP_BYTES = 50_000_000_000
"""The hub sends larger files by its own protocol only."""

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file of a repository, as the hub describes it."""

    name: str
    num_bytes: int
    sha256: str


def large_file(sibling: Any) -> LargeFile | None:
    """The file of an entry of huggingface_hub's `siblings`; None: the hub gives no checksum."""
    lfs, size = sibling.lfs or {}, sibling.size
    sha256 = lfs.get("sha256")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        return None
    if type(size) is not int or not 0 < size <= _MAX_HTTP_BYTES:
        return None
    return LargeFile(sibling.rfilename, size, sha256)


class Repository:
    """The files of one repository in the hub's cache."""

    def __init__(
        self, model: str, revision: str | None, cache: Path, hf_token: str | bool | None
    ) -> None:
        folder = f"models--{model.replace('/', '--')}"
        self._model, self._revision, self._token = model, revision, hf_token
        self._cache = cache
        self._blobs = cache / folder / "blobs"
        self._locks = cache / ".locks" / folder

    def fetch(
        self, files: Iterable[LargeFile], report: Callable[[int, int], None] | None
    ) -> list[Path]:
        """Fetches the files that are not here; returns their places, without those of files that
        another process has fetched meanwhile. Raises OSError, ConfigError, CheckpointError and
        errors of the HTTP library."""
        by_sum = {file.sha256: file for file in files}
        missing = [one for one in by_sum.values() if not (self._blobs / one.sha256).exists()]
        self._check_room(missing)
        total, done = sum(file.num_bytes for file in missing), 0
        fetched = []
        for file in missing:
            if self._fetch(file, partial(_report_from, report, done, total)):
                fetched.append(self._blobs / file.sha256)
            done += file.num_bytes
        return fetched

    def remove_stale(self, known: Iterable[LargeFile]) -> None:
        """Deletes partial files that no process uses, of files that are here or that the
        repository does not have any more. Without known files, nothing is deleted."""
        sums = {file.sha256 for file in known}
        for path in self._blobs.glob(f"*{_SUFFIX}") if sums else ():
            checksum = path.name.partition(".")[0]
            if checksum in sums and not (self._blobs / checksum).exists():
                continue
            with suppress(OSError, TimeoutError), self._lock(checksum, timeout=0.1):
                path.unlink()

    def _check_room(self, missing: Sequence[LargeFile]) -> None:
        needed = sum(max(0, one.num_bytes - _size(self._partial(one))) for one in missing)
        place = next((path for path in (self._blobs, *self._blobs.parents) if path.exists()), None)
        if not needed or place is None:
            return
        free = shutil.disk_usage(place).free
        if free < needed:
            raise ConfigError(
                f"{self._model} needs {format_bytes(needed)} more in {self._cache}, where "
                f"{format_bytes(free)} are free; make room there, or give another place with "
                "HF_HUB_CACHE or download_dir"
            )

    def _fetch(self, file: LargeFile, report: Callable[[int], None]) -> bool:
        """Whether this process has fetched it, and not another one meanwhile."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        path, blob = self._partial(file), self._blobs / file.sha256
        with self._lock(file.sha256):  # another process may fetch it
            if blob.exists():
                return False
            had = _size(path)
            if had > file.num_bytes:
                path.unlink()
            self._append(file, path, report)
            if had and sha256_of(path) != file.sha256:
                _logger.warning("%s: the partial file was damaged; fetching anew", file.name)
                path.unlink()
                self._append(file, path, report)
            if sha256_of(path) != file.sha256:
                path.unlink()
                raise CheckpointError(
                    f"{file.name} does not have the checksum that the hub gives it, and was "
                    "deleted; pull the model again"
                )
            os.replace(path, blob)
        return True

    def _append(self, file: LargeFile, path: Path, report: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = {**build_hf_headers(token=self._token), "Accept-Encoding": "identity"}
        with _PartialFile(path, file, report) as part:
            http_get(
                hf_hub_url(self._model, file.name, revision=self._revision),
                part,
                resume_size=part.tell(),
                headers=headers,
                expected_size=file.num_bytes,
                displayed_filename=file.name,
            )

    def _lock(self, checksum: str, timeout: float | None = None) -> Any:
        """The lock that huggingface_hub holds while it fetches the file, too."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        self._locks.mkdir(parents=True, exist_ok=True)
        return WeakFileLock(self._locks / f"{checksum}.lock", timeout=timeout)

    def _partial(self, file: LargeFile) -> Path:
        return self._blobs / f"{file.sha256}{_SUFFIX}"


def _report_from(
    report: Callable[[int, int], None] | None, base: int, total: int, count: int
) -> None:
    if report is not None:
        report(base + count, total)


class _PartialFile(io.BufferedWriter):
    """Appends to a file, at most as many bytes as it must have, and reports its length."""

    def __init__(self, path: Path, file: LargeFile, report: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._file, self._report = file, report
        self.seek(0, os.SEEK_END)

    def write(self, data: Any) -> int:
        """Raises CheckpointError for more bytes than the hub has announced."""
        end = self.tell() + len(data)
        if end > self._file.num_bytes:
            raise CheckpointError(
                f"{self._file.name}: the hub sends more than the {self._file.num_bytes} bytes that "
                "it announces"
            )
        count = super().write(data)
        self._report(end)
        return count


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def sha256_of(path: Path) -> str:
    """The checksum of a file. Raises OSError."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            state.update(piece)
    return state.hexdigest()

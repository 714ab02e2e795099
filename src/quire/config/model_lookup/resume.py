"""Fetches files of a repository into the hub's cache, and goes on where an earlier process ended.

huggingface_hub begins each file anew in every process, and limits no file's length. The files and
links are those that it would make.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import time
from typing import Any
from uuid import uuid4

from quire.errors import CheckpointError, ConfigError, quoted
from quire.log import get_logger
from quire.units import MiB, format_bytes

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_PIECE = 1 << 22
_BLOCK = 1 << 18
"""Bytes that are written at once: a process that is killed loses at most so many."""
_SUFFIX = ".incomplete"
_MAX_HTTP_BYTES = 50_000_000_000
"""The hub sends larger files by its own protocol only."""
_MAX_TEXT_BYTES = 1024 * MiB
"""Most bytes of a file that is not stored as a large one."""
_MAX_UNKNOWN_BYTES = 64 * MiB
"""Most bytes of a text whose size the hub does not give."""
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_KEPT_S = 7 * 86400.0
"""A partial file of another revision is kept for so long."""

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository, as the hub describes it."""

    name: str
    num_bytes: int = 0
    digest: str = ""
    """SHA-256 of a large file, or the name that git gives to its content; empty: the hub gives
    none, or the size is wrong."""


def remote_file(sibling: Any) -> RemoteFile:
    """The file of an entry of huggingface_hub's `siblings`. Raises CheckpointError for a name that
    leads out of the repository."""
    name, size = sibling.rfilename, sibling.size
    if not _is_inside(name):
        raise CheckpointError(f"the hub lists a file of the name {quoted(name)}, which is refused")
    is_large = isinstance(sibling.lfs, dict)
    digest = sibling.lfs.get("sha256") if is_large else sibling.blob_id
    form, most = (_SHA256, _MAX_HTTP_BYTES) if is_large else (_SHA1, _MAX_TEXT_BYTES)
    is_known = isinstance(digest, str) and bool(form.fullmatch(digest))
    if not is_known or type(size) is not int or not 0 <= size <= most:
        return RemoteFile(name)
    return RemoteFile(name, size, digest)


def _is_inside(name: object) -> bool:
    """Whether a name is a relative path without steps upwards."""
    parts = name.split("/") if isinstance(name, str) else [""]
    return not any(part in ("", ".", "..") or not part.isprintable() for part in parts)


class Repository:
    """The files of one repository in the hub's cache."""

    def __init__(
        self, model: str, commit: str | None, cache: Path, hf_token: str | bool | None
    ) -> None:
        """Raises CheckpointError if `commit` is not one."""
        if not isinstance(commit, str) or not _SHA1.fullmatch(commit):
            raise CheckpointError(f"the hub gives {quoted(commit)} as the commit of {model}")
        folder = f"models--{model.replace('/', '--')}"
        self._model, self._commit, self._token = model, commit, hf_token
        self._cache = cache
        self._directory = cache / folder
        self._blobs = cache / folder / "blobs"
        self._locks = cache / ".locks" / folder

    def fetch(
        self, files: Sequence[RemoteFile], report: Callable[[int, int], None] | None
    ) -> list[Path]:
        """Fetches the files that are not here, and links them into the snapshot. Returns the places
        of those that were fetched and compared with their checksums. Raises OSError, ConfigError,
        CheckpointError and errors of the HTTP library."""
        by_digest = {file.digest: file for file in files if file.digest}
        missing = [one for one in by_digest.values() if not (self._blobs / one.digest).exists()]
        self._check_room(missing)
        total, done = sum(file.num_bytes for file in missing), 0
        fetched = []
        for file in missing:
            if self._fetch(file, partial(_report_from, report, done, total)):
                fetched.append(self._blobs / file.digest)
            done += file.num_bytes
        for file in files:
            self._link(file if file.digest else self._fetched_unknown(file))
        return fetched

    def snapshot(self, revision: str | None) -> Path:
        """The directory of the files, after noting that it is the state of `revision`."""
        snapshot = self._directory / "snapshots" / self._commit
        ref = self._directory / "refs" / (revision or "main")
        if revision != self._commit and ".." not in ref.parts:
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self._commit)
        return snapshot

    def remove_stale(self, known: Iterable[RemoteFile]) -> None:
        """Deletes partial files that no process uses: of files that are here, and old ones of files
        that this revision does not have. Without known files, nothing is deleted."""
        digests = {file.digest for file in known}
        for path in self._blobs.glob(f"*{_SUFFIX}") if digests else ():
            digest = path.name.partition(".")[0]
            is_here = (self._blobs / digest).exists()
            with suppress(OSError, TimeoutError), self._lock(digest, timeout=0.1):
                if is_here or (digest not in digests and path.stat().st_mtime < time() - _KEPT_S):
                    path.unlink()

    def _link(self, file: RemoteFile) -> None:
        """Makes the file of the snapshot a link to the content."""
        path = self._directory / "snapshots" / self._commit / file.name
        blob = self._blobs / file.digest
        if path.exists() and (not file.digest or path.samefile(blob)):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(blob, path.parent))

    def _fetched_unknown(self, file: RemoteFile) -> RemoteFile:
        """Fetches a file whose size or checksum the hub does not give, or which only the hub's own
        protocol sends."""
        if file.name.endswith(_WEIGHTS):
            from huggingface_hub import hf_hub_download

            hf_hub_download(self._model, file.name, revision=self._commit, cache_dir=self._cache,
                            token=self._token)  # fmt: skip
            return file
        self._blobs.mkdir(parents=True, exist_ok=True)
        path = self._blobs / f"{uuid4().hex}{_SUFFIX}"
        try:
            self._append(replace(file, num_bytes=_MAX_UNKNOWN_BYTES), path, lambda _: None)
            digest = digest_of(path, "")
            os.replace(path, self._blobs / digest)
        finally:
            path.unlink(missing_ok=True)
        return replace(file, digest=digest)

    def _check_room(self, missing: Sequence[RemoteFile]) -> None:
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

    def _fetch(self, file: RemoteFile, report: Callable[[int], None]) -> bool:
        """Whether this process has fetched it, and not another one meanwhile."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        path, blob = self._partial(file), self._blobs / file.digest
        with self._lock(file.digest):  # another process may fetch it
            if blob.exists():
                return False
            had = _size(path)
            if had > file.num_bytes:
                path.unlink()
            self._append(file, path, report)
            if had and digest_of(path, file.digest) != file.digest:
                _logger.warning("%s: the partial file was damaged; fetching anew", file.name)
                path.unlink()
                self._append(file, path, report)
            size = _size(path)
            if size != file.num_bytes or digest_of(path, file.digest) != file.digest:
                path.unlink()
                what = "checksum" if size == file.num_bytes else f"size, {file.num_bytes} bytes,"
                raise CheckpointError(
                    f"{file.name} does not have the {what} that the hub gives it, and was "
                    "deleted; pull the model again"
                )
            os.replace(path, blob)
        return True

    def _append(self, file: RemoteFile, path: Path, report: Callable[[int], None]) -> None:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = {**build_hf_headers(token=self._token), "Accept-Encoding": "identity"}
        constants.DOWNLOAD_CHUNK_SIZE = _BLOCK
        with _PartialFile(path, file, report) as part:
            if part.tell() == file.num_bytes:
                return
            try:
                http_get(
                    hf_hub_url(self._model, file.name, revision=self._commit),
                    part,
                    resume_size=part.tell(),
                    headers=headers,
                    displayed_filename=file.name,
                )
            except CheckpointError:
                path.unlink()
                raise

    def _lock(self, checksum: str, timeout: float | None = None) -> Any:
        """The lock that huggingface_hub holds while it fetches the file, too."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        self._locks.mkdir(parents=True, exist_ok=True)
        return WeakFileLock(self._locks / f"{checksum}.lock", timeout=timeout)

    def _partial(self, file: RemoteFile) -> Path:
        return self._blobs / f"{file.digest}{_SUFFIX}"


def _report_from(
    report: Callable[[int, int], None] | None, base: int, total: int, count: int
) -> None:
    if report is not None:
        report(base + count, total)


class _PartialFile(io.BufferedWriter):
    """Appends to a file, at most as many bytes as it must have, and reports its length."""

    def __init__(self, path: Path, file: RemoteFile, report: Callable[[int], None]) -> None:
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


def digest_of(path: Path, like: str) -> str:
    """The checksum of a file, of the kind that `like` is: SHA-256, or git's. Raises OSError."""
    state = hashlib.sha256()
    if not _SHA256.fullmatch(like):
        state = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            state.update(piece)
    return state.hexdigest()

"""What `quire run-batch` needs around its requests: files, also at URLs, and a page of metrics."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

from quire.errors import ConfigError, quoted
from quire.log import get_logger

logger = get_logger(__name__)

_TIMEOUT_S = 1000.0
_TRIES = 5
RETRY_S = 5.0
"""Seconds between two attempts to upload a file."""


def is_url(place: str) -> bool:
    """Whether a file is given by an http or https URL."""
    return place.startswith(("http://", "https://"))


@contextmanager
def local_input(place: str) -> Iterator[Path]:
    """The input as a local file. Raises ConfigError if it does not exist or cannot be
    downloaded."""
    if not is_url(place):
        path = Path(place)
        if not path.is_file():
            raise ConfigError(f"--input-file {place}: the file does not exist")
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="quire-batch-") as directory:
        path = Path(directory) / "input.jsonl"
        try:
            with urllib.request.urlopen(place, timeout=_TIMEOUT_S) as reply, path.open("wb") as out:
                shutil.copyfileobj(reply, out)
        except (OSError, HTTPException, ValueError) as error:
            raise ConfigError(f"--input-file {place} cannot be fetched: {error}") from None
        yield path


@contextmanager
def local_output(place: str, directory: str | None) -> Iterator[Path]:
    """The local file to write; if `place` is a URL, it is uploaded after the block.

    `directory`: folder of the temporary file. Raises ConfigError if the upload fails; the error
    names the file, which is kept.
    """
    if not is_url(place):
        yield Path(place)
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="quire-batch-", dir=directory))
    except OSError as error:
        raise ConfigError(f"--output-tmp-dir {quoted(directory)}: {error.strerror}") from None
    path = folder / "output.jsonl"
    yield path
    _send(path, place)
    shutil.rmtree(folder, ignore_errors=True)


def _send(path: Path, url: str) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            with path.open("rb") as file:
                headers = {
                    "Content-Length": str(path.stat().st_size),
                    "Content-Type": "application/jsonl",
                }
                request = urllib.request.Request(url, data=file, headers=headers, method="PUT")
                urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
            return
        except (OSError, HTTPException, ValueError) as error:
            if attempt == _TRIES:
                raise ConfigError(
                    f"--output-file {url}: the replies cannot be sent: {error}; they are in {path}"
                ) from None
            logger.warning("attempt %d to send the replies failed: %s", attempt, error)
            time.sleep(RETRY_S)


_HEAD_S = 10.0
"""Seconds within which a request must arrive."""


async def serve_metrics(text: Callable[[], bytes], host: str, port: int) -> asyncio.Server:
    """Serve the current metrics for every GET request. Raises ConfigError if the address is in use.

    Runs on the event loop, the only thread that changes what `text` reads.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
            is_get = head.startswith(b"GET ")
            body = text() if is_get else b""
            status = b"200 OK" if is_get else b"405 Method Not Allowed"
            writer.write(
                b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
            )
            await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(answer, host, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"metrics cannot be served at {host}:{port}: {error}; give another --port"
        ) from None

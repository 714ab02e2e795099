"""`Pull`: one download of a model from the hub, in a process of its own, which may be ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from quire.server.http.problems import HttpError, Problem

_MAX_LINE_BYTES = 1 << 16


class Pull:
    """Runs `quire pull --json`. Owned by the event loop. `close` must be called in the end."""

    def __init__(
        self, name: str, offer: Callable[[], Awaitable[None]], on_close: Callable[[Pull], None]
    ) -> None:
        """`offer` is called once the model is here."""
        self._name = name
        self._offer = offer
        self._on_close = on_close
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of progress; the last one has `success` or an error. They end early after
        `close`. Raises HttpError, and what `offer` raises."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "quire", "pull", "--json", "--", self._name,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=_MAX_LINE_BYTES,
        )  # fmt: skip
        assert process.stdout is not None
        if self._is_closed:
            self._kill()
        line = b""
        async for line in process.stdout:
            if not line.startswith(b'{"status": "success"'):
                yield line
        code = await process.wait()
        if self._is_closed:
            return
        if code == 0:
            await self._offer()
            yield line
        elif b'"error"' not in line:
            raise HttpError(Problem(500, f"The process that pulls ended with code {code}."))

    def close(self) -> None:
        """Ends the download, if it has not ended; the next pull continues it. Idempotent."""
        self._is_closed = True
        self._on_close(self)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

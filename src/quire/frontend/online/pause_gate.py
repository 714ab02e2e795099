"""`PauseGate`: where new requests wait while generation is paused. Owned by the event loop."""

from __future__ import annotations

import asyncio


class PauseGate:
    """Open until it is closed, and again."""

    def __init__(self) -> None:
        self._opened: asyncio.Event | None = None
        """Exists while the gate is closed."""

    @property
    def is_closed(self) -> bool:
        """Whether `wait` would wait."""
        return self._opened is not None

    def close(self) -> None:
        """From now on new calls wait. Idempotent."""
        self._opened = self._opened or asyncio.Event()

    def open(self) -> bool:
        """Lets everyone through; whether the gate had been closed."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.set()
        return opened is not None

    def renew(self) -> None:
        """Another event loop's calls will wait from now on, if it is closed; nobody waits now."""
        if self._opened is not None:
            self._opened = asyncio.Event()

    async def wait(self) -> None:
        """Returns once the gate is open."""
        while self._opened is not None:
            await self._opened.wait()

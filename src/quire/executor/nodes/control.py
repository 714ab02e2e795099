"""`Control`: the connection between the engine and another machine, as both ends use it.

From the first moment on a thread of each end sends a message five times a second, whatever this end
does or waits for, and the other end is given up if it is silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

import msgspec

from quire.errors import RankError
from quire.executor.messages import encode
from quire.executor.nodes.messages import BEAT_S, SILENCE_S, Beat

Message = TypeVar("Message")
_MAX_BYTES = 64 << 20
"""The largest message that is read. The longest one holds the configuration."""


@dataclass(slots=True)
class Elapsed:
    """The time between regular looks at something. A late look counts as two beats at most, because
    this process may have been stopped itself."""

    _last: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Since the last call."""
        now = time.monotonic()
        elapsed_s, self._last = min(now - self._last, 2 * BEAT_S), now
        return elapsed_s


class Control(Generic[Message]):
    """One end. `send` on any thread, the other methods on one thread."""

    def __init__(
        self,
        peer: str,
        connection: Connection,
        decode: Callable[[bytes], Message],
        beat: Callable[[], Beat] = Beat,
        patience_s: float = 0.0,
    ) -> None:
        """`peer`: the other end's name, for errors. `beat`: makes the regular message, on the
        thread that sends it. `patience_s`: how much longer the first message may take."""
        self._peer = peer
        self._connection = connection
        self._decode = decode
        self._beat = beat
        self._silent_s = -patience_s
        self._elapsed = Elapsed()
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._beating = threading.Thread(target=self._send_beats, name="quire-beats", daemon=True)
        self._beating.start()

    def send(self, message: object) -> None:
        """Sends a message; `read` reports it if the other end has gone."""
        try:
            with self._lock:
                self._connection.send_bytes(encode(message))
        except (OSError, ValueError):  # the other end has ended, or this one is closed
            return

    def wait(self, seconds: float) -> None:
        """Waits until `read` has something to report, or for so many seconds."""
        with suppress(OSError):  # which `read` reports
            self._connection.poll(seconds)

    def read(self) -> Message | None:
        """The next message; None if none has come. To be called regularly. Raises RankError if the
        other end has ended or is silent."""
        try:
            if self._connection.poll():
                message = self._decode(self._connection.recv_bytes(_MAX_BYTES))
                self._silent_s = 0.0
                return message
        except (EOFError, OSError):
            raise RankError(f"{self._peer} has ended") from None
        except msgspec.DecodeError as error:
            raise RankError(f"{self._peer} has sent an unknown message: {error}") from None
        self._silent_s += self._elapsed.seconds()
        if self._silent_s > SILENCE_S:
            raise RankError(f"{self._peer} has sent nothing for {self._silent_s:.1f} s")
        return None

    def stop_beats(self) -> None:
        """Sends no more regular messages. Idempotent."""
        self._is_closing.set()
        self._beating.join()

    def close(self) -> None:
        """Closes this end. Idempotent."""
        self.stop_beats()
        self._connection.close()

    def _send_beats(self) -> None:
        while not self._is_closing.wait(BEAT_S):
            self.send(self._beat())

"""`RemoteNode`: the ranks of another machine, where the program of `agent.py` runs.

The engine listens on `master_addr` and `master_port`. The other machine connects, says what it is,
and starts its ranks when it gets the configuration. Each rank has its own connections to the engine
and to ranks of other machines. Both ends send a message five times a second, and give up an end
that is silent.
"""

from __future__ import annotations

import socket
import threading
import time

from quire.config.ranks import Rank
from quire.errors import ConfigError, RankError
from quire.executor.messages import encode
from quire.executor.nodes.door import Door
from quire.executor.nodes.links import START_S, Addresses, purpose_of_channel
from quire.executor.nodes.messages import (
    BEAT_S,
    SILENCE_S,
    Beat,
    Begin,
    Begun,
    Checked,
    End,
    FromNode,
    Hello,
    Refused,
    decode_from_node,
)
from quire.executor.nodes.node import Node, RankLine
from quire.executor.nodes.rank_spawn import Group
from quire.executor.nodes.tls import channel


class RemoteNode(Node):
    """One other machine."""

    def __init__(self, number: int, door: Door, connected: socket.socket, until: float) -> None:
        """`connected`: the connection that the machine has made. Waits until it has said what it
        is, until a time of `time.monotonic`. Raises RankError."""
        self.number = number
        self.lines: list[RankLine] = []
        self._door = door
        self._control = channel(connected, accepts=True)
        self._lock = threading.Lock()
        self._silent_s = 0.0
        self._beat_at = 0.0
        self._progress = 0
        self._cause: str | None = None
        hello = self._read(until)
        if not isinstance(hello, Hello):
            raise RankError(f"{self} did not say what it is")
        self.hello = hello

    def __str__(self) -> str:
        return f"node {self.number}"

    def refuse(self, reason: str) -> None:
        """Tell the machine why it cannot take part."""
        self._send(Refused(reason))

    def begin(self, group: Group, addresses: Addresses) -> None:
        """Make the machine start its ranks. Does not wait."""
        self._send(Begin(group.config, group.generation, addresses))

    def wait_until_checked(self) -> None:
        """Wait until it has compared its weights. Raises ConfigError with the machine's reason, or
        RankError."""
        self._expect(Checked, time.monotonic() + START_S)

    def take_lines(self, group: Group) -> None:
        """Wait until its ranks are started and connected. Raises ConfigError with the machine's
        reason, or RankError."""
        until = time.monotonic() + START_S
        self._expect(Begun, until)
        for rank in group.config.parallel.ranks_of_node(self.number):
            purposes = (
                purpose_of_channel(group.generation, rank, kind) for kind in ("steps", "blocks")
            )
            steps, blocks = (
                channel(self._door.take(purpose, until), accepts=True) for purpose in purposes
            )
            self.lines.append(RankLine(rank, steps, blocks))

    def look(self, elapsed_s: float) -> str | None:
        self._silent_s += elapsed_s
        try:
            while self._control.poll():
                self._on_message(decode_from_node(self._control.recv_bytes()))
        except (EOFError, OSError):
            return self._cause or f"{self} has ended"
        if self._silent_s > SILENCE_S:
            return f"{self} has sent nothing for {self._silent_s:.1f} s"
        if time.monotonic() - self._beat_at > BEAT_S:
            self._beat_at = time.monotonic()
            self._send(Beat())
        return self._cause

    def ended(self) -> str | None:
        return self._cause

    def end_of(self, rank: Rank) -> str:
        until = time.monotonic() + 2 * BEAT_S
        while time.monotonic() < until and self._cause is None:
            time.sleep(BEAT_S / 10)  # until the watching thread has got the next message
        return self._cause or f"{rank} on {self} has closed its connection"

    def progress(self) -> int:
        return self._progress

    def kill(self) -> None:
        self._send(End(is_kill=True))
        for line in self.lines:
            line.abort()

    def end(self) -> None:
        for line in self.lines:
            line.close()
        self._send(End())
        self._control.close()

    def _expect(self, kind: type[FromNode], until: float) -> None:
        message = self._read(until)
        if isinstance(message, Refused):
            raise ConfigError(f"{self}: {message.reason}")
        if not isinstance(message, kind):
            raise RankError(f"{self} has sent something else than expected")

    def _on_message(self, message: FromNode) -> None:
        self._silent_s = 0.0
        if isinstance(message, Beat):
            self._progress = message.progress
            self._cause = self._cause or message.cause or None
        elif isinstance(message, Refused):
            self._cause = f"{self}: {message.reason}"

    def _send(self, message: object) -> None:
        try:
            with self._lock:
                self._control.send_bytes(encode(message))
        except (OSError, ValueError):  # the rank has ended or was closed; `look` reports it
            return

    def _read(self, until: float) -> FromNode:
        try:
            if self._control.poll(max(0.0, until - time.monotonic())):
                found: FromNode = decode_from_node(self._control.recv_bytes())
                return found
        except (EOFError, OSError):
            raise RankError(f"{self} has ended while the engine was starting") from None
        raise RankError(f"{self} has not answered")

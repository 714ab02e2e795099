"""`RemoteNode`: the ranks of another machine, where the program of `agent.py` runs.

The engine listens on `master_addr` and `master_port`. The other machine connects, says what it is,
and starts its ranks when it gets the configuration. Each rank has its own connections to the engine
and to ranks of other machines.
"""

from __future__ import annotations

import time
from collections import deque
from multiprocessing.connection import Connection
from typing import TypeVar

from quire.config.ranks import Rank
from quire.errors import ConfigError, RankError
from quire.executor.nodes.control import Control
from quire.executor.nodes.door import WATCH_S, Door
from quire.executor.nodes.links import START_S, Addresses, purpose_of_channel
from quire.executor.nodes.messages import (
    BEAT_S,
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
from quire.executor.nodes.tls import messages_over

Answer = TypeVar("Answer")


class RemoteNode(Node):
    """One other machine."""

    def __init__(self, door: Door, number: int, connection: Connection) -> None:
        """`connection`: what the machine has made first. Waits until it has said what it is. Raises
        RankError or ConfigError."""
        self.number = number
        self.lines: list[RankLine] = []
        self._door = door
        self._answers: deque[FromNode] = deque()
        """All that it has sent, but for regular messages."""
        self._progress = 0
        self._cause: str | None = None
        self._has_refused = False
        self._control = Control(str(self), connection, decode_from_node)
        try:
            self.hello = self._expect(Hello, time.monotonic() + START_S)
        except BaseException:
            self._control.close()
            raise

    def __str__(self) -> str:
        return f"node {self.number}"

    def refuse(self, reason: str) -> None:
        """Tell the machine why it cannot take part."""
        self._control.send(Refused(reason))

    def begin(self, group: Group, addresses: Addresses) -> None:
        """Make the machine start its ranks. Does not wait."""
        self._control.send(Begin(group.config, group.generation, addresses))

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
            steps, blocks = (
                messages_over(
                    self._door.take(purpose_of_channel(group.generation, rank, kind), until)
                )
                for kind in ("steps", "blocks")
            )
            self.lines.append(RankLine(rank, steps, blocks))

    def check(self) -> None:
        """Call `look` while the engine starts. Raises ConfigError with the machine's reason if it
        cannot take part, and RankError if it has ended or is silent."""
        cause = self.look()
        if cause is not None:
            raise (ConfigError if self._has_refused else RankError)(cause)

    def look(self) -> str | None:
        try:
            while (message := self._control.read()) is not None:
                self._on_message(message)
        except RankError as error:
            self._cause = self._cause or str(error)
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
        self._control.send(End())
        for line in self.lines:
            line.abort()

    def end(self) -> None:
        for line in self.lines:
            line.close()
        self._control.send(End())
        self._control.close()

    def _expect(self, kind: type[Answer], until: float) -> Answer:
        """The next answer of this machine, while it and the others are watched."""
        while not self._answers:
            if time.monotonic() > until:
                raise RankError(f"{self} has not answered")
            self.check()
            self._door.watch()
            self._control.wait(WATCH_S)
        answer = self._answers.popleft()
        if not isinstance(answer, kind):
            raise RankError(f"{self} has sent something else than expected")
        return answer

    def _on_message(self, message: FromNode) -> None:
        if isinstance(message, Beat):
            self._progress = message.progress
            self._cause = self._cause or message.cause or None
        elif isinstance(message, Refused):
            self._cause, self._has_refused = f"{self}: {message.reason}", True
        else:
            self._answers.append(message)

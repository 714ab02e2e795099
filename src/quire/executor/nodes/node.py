"""`Node`: a machine with ranks of an engine, as the engine starts and watches them."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from quire.config.ranks import Rank
from quire.executor.nodes.control import Elapsed
from quire.executor.nodes.rank_spawn import Group, PeerLink, spawn_ranks
from quire.system.child_process import STOPPED_S, wait_or_kill
from quire.system.thread_states import is_stopped, thread_states

EXIT_S = 5.0


@dataclass(slots=True, eq=False)
class RankLine:
    """The connections to one rank."""

    rank: Rank
    steps: Connection
    """Calls in the order of steps."""
    blocks: Connection
    """Copies of KV blocks, at any time."""
    process: subprocess.Popen[bytes] | None = None
    """None on another machine."""
    blocks_lock: threading.Lock = field(default_factory=threading.Lock)

    def abort(self) -> None:
        """Ends all waiting on both connections, which may not show that the other end is gone. Any
        thread."""
        for connection in (self.steps, self.blocks):
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as own:
                own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes both connections, so that the rank ends."""
        self.steps.close()
        self.blocks.close()


class Node(ABC):
    """The ranks of one machine. All calls but `progress` and `kill` on the watching thread."""

    lines: list[RankLine]

    @abstractmethod
    def look(self) -> str | None:
        """Return the cause of the end or stop of a rank; None while all ranks run. Must be called
        regularly."""

    @abstractmethod
    def ended(self) -> str | None:
        """Return the cause of the end of a rank, if it is known. Any thread."""

    @abstractmethod
    def end_of(self, rank: Rank) -> str:
        """Return the cause of the end of a rank whose connection has closed. Waits for a moment.
        Any thread."""

    @abstractmethod
    def progress(self) -> int:
        """A number that changes while a rank computes, or waits for a core or a disk. Any
        thread."""

    @abstractmethod
    def kill(self) -> None:
        """Kills all ranks. Any thread."""

    @abstractmethod
    def end(self) -> None:
        """Ends all ranks; those that do not end are killed."""


class RankChildren:
    """The processes of ranks that this process has started."""

    def __init__(self, processes: dict[Rank, subprocess.Popen[bytes]]) -> None:
        self.processes = processes
        self._stopped_s = dict.fromkeys(processes, 0.0)
        self._elapsed = Elapsed()

    def look(self) -> str | None:
        """Implements `Node.look`."""
        elapsed_s = self._elapsed.seconds()
        for rank, process in self.processes.items():
            stopped_s = self._stopped_s[rank] + elapsed_s if is_stopped(process.pid) else 0.0
            self._stopped_s[rank] = stopped_s
            if stopped_s > STOPPED_S:
                return f"{rank} was stopped by a signal (SIGSTOP)"
        return self.ended()

    def ended(self) -> str | None:
        """Implements `Node.ended`."""
        codes = {rank: process.poll() for rank, process in self.processes.items()}
        dead = [(code, rank) for rank, code in codes.items() if code is not None]
        if not dead:
            return None
        # A rank that was killed, which has a negative code, is why others ended by themselves.
        return self.end_of(min(dead, key=lambda one: one[0])[1])

    def end_of(self, rank: Rank) -> str:
        """Implements `Node.end_of`."""
        try:
            code = self.processes[rank].wait(1.0)
        except subprocess.TimeoutExpired:
            return f"{rank} has closed its connection"
        if code < 0:
            return f"{rank} was killed by signal {-code}"
        return f"{rank} ended with exit code {code}"

    def progress(self) -> int:
        """Implements `Node.progress`."""
        pids = [process.pid for process in self.processes.values()]
        threads = [state for pid in pids for state in thread_states(pid).values()]
        ticks = sum(round(state.cpu_s * 100) for state in threads)
        if all(state.is_asleep for state in threads):
            return ticks
        return ticks + time.monotonic_ns()

    def kill(self) -> None:
        """Implements `Node.kill`."""
        for process in self.processes.values():
            process.kill()

    def end(self) -> None:
        """Waits for the ranks, whose connections were closed; kills those that do not end."""
        until = time.monotonic() + EXIT_S
        for process in self.processes.values():
            wait_or_kill(process, until - time.monotonic())


class LocalNode(Node):
    """The ranks of this machine, as processes that end with the calling thread."""

    def __init__(self, group: Group, peer_link: PeerLink) -> None:
        """Starts them. Raises OSError, ConfigError or RankError."""
        with ExitStack() as stack:  # closes what is open if the ranks cannot be started

            def pair() -> list[socket.socket]:
                return [stack.enter_context(end) for end in socket.socketpair()]

            pairs = {rank: (pair(), pair()) for rank in group.own_ranks}
            channels = {
                rank.number: (steps[1].detach(), blocks[1].detach())
                for rank, (steps, blocks) in pairs.items()
            }
            self._children = RankChildren(spawn_ranks(group, channels, peer_link))
            self.lines = [
                RankLine(
                    rank,
                    Connection(steps[0].detach()),
                    Connection(blocks[0].detach()),
                    self._children.processes[rank],
                )
                for rank, (steps, blocks) in pairs.items()
            ]

    def look(self) -> str | None:
        return self._children.look()

    def ended(self) -> str | None:
        return self._children.ended()

    def end_of(self, rank: Rank) -> str:
        return self._children.end_of(rank)

    def progress(self) -> int:
        return self._children.progress()

    def kill(self) -> None:
        self._children.kill()

    def end(self) -> None:
        for line in self.lines:
            line.close()
        self._children.end()

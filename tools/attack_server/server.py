"""A server in a process of its own, to be attacked."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_READY = re.compile(r" at https?://[^:]+:(\d+), ready")
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ 0 *\n(?:.*\n)*?Rss: +(\d+) kB", re.M)
_PAGE_KIB = 4
_SETTLED_AFTER_S = 8.0
"""An idle server gives memory back every five seconds."""
_RESERVED_BYTES = 1 << 29
"""Mappings of this size at the start are the KV cache's."""


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A range of a process's addresses."""

    begin: int
    end: int
    resident_kib: int


def _mappings(pid: int) -> list[_Mapping]:
    """The anonymous mappings of a process."""
    found = []
    for part in _MAPPING.finditer(Path(f"/proc/{pid}/smaps").read_text()):
        begin, end, resident = part.groups()
        found.append(_Mapping(int(begin, 16), int(end, 16), int(resident)))
    return found


class Server:
    """Started with these arguments of `quire serve`; ends with `stop`."""

    def __init__(self, arguments: list[str], *, is_tls: bool) -> None:
        """Returns once it is ready."""
        self.is_tls = is_tls
        self.log: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "quire", "serve", *arguments, "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.port = self._wait()
        self._reserved = [
            (one.begin, one.end)
            for one in _mappings(self.pid)
            if one.end - one.begin >= _RESERVED_BYTES
        ]
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    @property
    def kv_mib(self) -> float:
        """Memory of the KV cache: reserved at the start, in use as far as it was written to."""
        return (
            sum(
                one.resident_kib
                for one in _mappings(self.pid)
                if any(one.begin < end and begin < one.end for begin, end in self._reserved)
            )
            / 1024
        )

    @property
    def own_mib(self) -> float:
        """Memory of the server and its children without the KV cache."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        pids = [self.pid, *(int(pid) for path in tasks for pid in path.read_text().split())]
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
        return sum(pages) * _PAGE_KIB / 1024 - self.kv_mib

    def settled_mib(self, before: float) -> float:
        """`own_mib` once it is within a tenth of `before`, or what it is when an idle server has
        given back what it does not need."""
        end = time.monotonic() + _SETTLED_AFTER_S
        while (now := self.own_mib) > 1.1 * before and time.monotonic() < end:
            time.sleep(0.1)
        return now

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(60)

    def _wait(self) -> int:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            if (match := _READY.search(line)) is not None:
                return int(match.group(1))
        raise RuntimeError("the server did not start:\n" + "".join(self.log))

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log = [*self.log[-200:], line]

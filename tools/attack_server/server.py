"""A server in a process of its own, to be attacked."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

_READY = re.compile(r" at https?://[^:]+:(\d+), ready")
_PAGE_KIB = 4


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
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def resident_mib(self) -> float:
        """Memory of the server and its children."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        pids = [
            self._process.pid,
            *(int(pid) for path in tasks for pid in path.read_text().split()),
        ]
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
        return sum(pages) * _PAGE_KIB / 1024

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

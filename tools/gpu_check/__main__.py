"""The command line of `tools.gpu_check`."""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tools.gpu_check.parts import EMULATED, GPU, PARTS, entry_of
from tools.gpu_check.report import Row, failed, line_of

_TAIL = 250
"""The last characters of a process's errors, which are shown."""
_MOST_STARTS = 4
"""Processes of a part: after a check that ends one, the others are done in the next."""
_EMULATED_TIMES = 5
"""All limits are so many times longer without a GPU."""
_BEGIN = "QUIRE_CHECK_BEGIN"
"""The environment variable with the time at which a part's process was started."""


def main() -> int:
    """Runs the parts. Returns 1 if one of them failed or missed a goal."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results to this file, as they come")
    parser.add_argument("--emulated", action="store_true", help="toy sizes, without a GPU")
    parser.add_argument("--seconds", type=float, default=235, help="limit of all parts together")
    parser.add_argument("--part", action="append", help="these parts alone, or MODULE:FUNCTION")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--done", default="[]", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return _be_child(args.child, json.loads(args.done), is_emulated=args.emulated)
    names = args.part or list(PARTS)
    times = _EMULATED_TIMES if args.emulated else 1
    try:
        limits = [times * entry_of(name).most_seconds for name in names]
    except ValueError as error:
        parser.error(str(error))
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M"), "parts": {}}
    end = time.monotonic() + times * args.seconds
    for name, most in zip(names, limits, strict=True):
        run = _Run(name, is_emulated=args.emulated)
        found["parts"][name] = run.found

        def keep() -> None:
            if args.json:
                args.json.write_text(json.dumps(found, indent=1))

        run.all(min(most, end - time.monotonic()), keep)
        keep()
    rows = [row for part in found["parts"].values() for row in part["rows"]]
    missed = sum(row["is_good"] is False for row in rows)
    bad = [name for name, part in found["parts"].items() if part["error"]]
    print(f"{len(rows)} results, {missed} missed; failed parts: {', '.join(bad) or 'none'}")
    return 1 if missed or bad else 0


@dataclass(slots=True)
class _Run:
    """The run of a part."""

    name: str
    is_emulated: bool = field(kw_only=True)
    found: dict[str, Any] = field(
        default_factory=lambda: {"rows": [], "error": "", "seconds": 0.0}, init=False
    )
    _done: list[str] = field(default_factory=list, init=False)
    """Checks that began."""

    def all(self, limit: float, keep: Callable[[], None]) -> None:
        """Runs the part, prints its results as they come, and calls `keep` after each of them."""
        begin = time.monotonic()
        end = begin + limit
        for _ in range(_MOST_STARTS):
            if end - time.monotonic() < 1:
                self._fail("no time was left")
                break
            known = len(self._done)
            error = self._once(end, keep)
            self.found["seconds"] = round(time.monotonic() - begin, 1)
            if not error:
                break
            if len(self._done) == known:  # it failed outside of a check, and would again
                self._fail(error)
                break
            self._take(failed(self._done[-1], error), keep)
        else:
            self._fail(f"it was started {_MOST_STARTS} times")
        print(f"{self.name:<10} {self.found['seconds']:.1f} s", flush=True)

    def _fail(self, error: str) -> None:
        self.found["error"] = error
        print(f"{self.name:<10} FAILED: {error}", flush=True)

    def _take(self, row: Row, keep: Callable[[], None]) -> None:
        print(line_of(self.name, row), flush=True)
        self.found["rows"].append(asdict(row))
        keep()

    def _once(self, end: float, keep: Callable[[], None]) -> str:
        """Runs a process of the part; returns why it failed, or nothing."""
        times = _EMULATED_TIMES if self.is_emulated else 1
        most = times * entry_of(self.name).check_seconds
        lines: queue.Queue[str | None] = queue.Queue()
        with (
            tempfile.TemporaryFile("w+") as errors,
            _started(self.name, self._done, errors, is_emulated=self.is_emulated) as child,
        ):
            reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
            reader.start()
            limit, late = end, ""
            while True:
                try:
                    line = lines.get(timeout=max(0.0, limit - time.monotonic()))
                except queue.Empty:
                    late = f"ended after its limit: {'the part' if limit == end else 'the check'}"
                    break
                if line is None:
                    break
                row, check = _row_of(line), _check_of(line)
                if check is not None:
                    self._done.append(check)
                    limit = min(end, time.monotonic() + most)
                elif row is not None:
                    self._take(row, keep)
            if late:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
            reader.join(5)
            errors.seek(0)
            tail = errors.read()[-_TAIL:].strip()
        return late or (f"the process ended with {status}: {tail}" if status else "")


def _started(
    name: str, done: list[str], errors: IO[str], *, is_emulated: bool
) -> subprocess.Popen[str]:
    """The process of a part, which leads a group, so that its limit ends what it started too."""
    environment = {**os.environ, _BEGIN: str(time.time()), "QUIRE_KV_STORE": "0"}
    environment |= {"QUIRE_CUDA_EMULATED": "1"} if is_emulated else {}
    command = [sys.executable, "-m", "tools.gpu_check", "--child", name, "--done", json.dumps(done)]
    command += ["--emulated"] if is_emulated else []
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        start_new_session=True,
    )  # fmt: skip


def _read(stream: IO[str] | None, lines: queue.Queue[str | None]) -> None:
    """Lines of a process, and None after the last one."""
    for line in stream or ():
        lines.put(line)
    lines.put(None)


def _row_of(line: str) -> Row | None:
    """The result in a line of a part's output; None for other lines."""
    try:
        return Row(**json.loads(line))
    except (TypeError, ValueError):
        return None


def _check_of(line: str) -> str | None:
    """The name of the check that begins; None for other lines."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    name = found.get("check") if isinstance(found, dict) and len(found) == 1 else None
    return name if isinstance(name, str) else None


def _be_child(name: str, done: list[str], *, is_emulated: bool) -> int:
    sizes = replace(EMULATED if is_emulated else GPU, done=frozenset(done), is_child=True)
    for row in entry_of(name).run(sizes):
        print(json.dumps(asdict(row)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

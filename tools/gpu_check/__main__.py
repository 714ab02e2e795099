"""The command line of `tools.gpu_check`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from tools.gpu_check.parts import EMULATED, GPU, PARTS
from tools.gpu_check.report import Row, line_of

_TAIL = 600
"""Characters of a failed part's errors that are shown."""
_BEGIN = "QUIRE_CHECK_BEGIN"
"""The environment variable with the time at which a part's process was started."""


def main() -> int:
    """Runs the parts. Returns 1 if one of them failed or missed a goal."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--emulated", action="store_true", help="toy sizes, without a GPU")
    parser.add_argument("--seconds", type=float, default=235, help="limit of all parts together")
    parser.add_argument("--part", choices=PARTS, action="append", help="these parts alone")
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return _be_child(args.child, is_emulated=args.emulated)
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M"), "parts": {}}
    end = time.monotonic() + args.seconds
    for name in args.part or PARTS:
        limit = min(PARTS[name].most_seconds, end - time.monotonic())
        found["parts"][name] = _run(name, limit, is_emulated=args.emulated)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))
    rows = [row for part in found["parts"].values() for row in part["rows"]]
    missed = sum(row["is_good"] is False for row in rows)
    failed = [name for name, part in found["parts"].items() if part["error"]]
    print(f"{len(rows)} results, {missed} missed; failed parts: {', '.join(failed) or 'none'}")
    return 1 if missed or failed else 0


def _run(name: str, limit: float, *, is_emulated: bool) -> dict[str, Any]:
    """Runs a part in a process of its own, and prints its results as they come."""
    if limit < 1:
        print(f"{name:<10} left out: no time is left", flush=True)
        return {"rows": [], "error": "no time was left", "seconds": 0.0}
    begin, error = time.monotonic(), ""
    with tempfile.TemporaryFile("w+") as errors:
        with _started(name, errors, is_emulated=is_emulated) as child:
            timer = threading.Timer(limit, os.killpg, (child.pid, signal.SIGKILL))
            timer.start()
            rows = list(_shown(name, child))
            status = child.wait()
            timer.cancel()
        seconds = time.monotonic() - begin
        if status:
            errors.seek(0)
            is_late = seconds >= limit
            error = f"ended after its limit of {limit:.0f} s" if is_late else errors.read()[-_TAIL:]
            print(f"{name:<10} FAILED: {error}", flush=True)
    print(f"{name:<10} {seconds:.1f} s", flush=True)
    return {"rows": rows, "error": error, "seconds": round(seconds, 1)}


def _started(name: str, errors: IO[str], *, is_emulated: bool) -> subprocess.Popen[str]:
    """The process of a part, which leads a group, so that its limit ends what it started too."""
    environment = {**os.environ, _BEGIN: str(time.time()), "QUIRE_KV_STORE": "0"}
    environment |= {"QUIRE_CUDA_EMULATED": "1"} if is_emulated else {}
    command = [sys.executable, "-m", "tools.gpu_check", "--child", name]
    command += ["--emulated"] if is_emulated else []
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        start_new_session=True,
    )  # fmt: skip


def _shown(name: str, child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The results of a part, each printed as it comes."""
    for line in child.stdout or ():
        row = _row_of(line)
        if row is not None:
            print(line_of(name, row), flush=True)
            yield asdict(row)


def _row_of(line: str) -> Row | None:
    """The result in a line of a part's output; None for other lines."""
    try:
        return Row(**json.loads(line))
    except (TypeError, ValueError):
        return None


def _be_child(name: str, *, is_emulated: bool) -> int:
    for row in _checked(PARTS[name].run(EMULATED if is_emulated else GPU)):
        print(json.dumps(asdict(row)), flush=True)
    return 0


def _checked(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        if not isinstance(row.value, str) and row.value != row.value:
            raise ValueError(f"{row.name} is not a number")
        yield row


if __name__ == "__main__":
    sys.exit(main())

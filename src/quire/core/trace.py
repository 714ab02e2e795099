"""`StepTrace`: records steps as trace events, which Perfetto and chrome://tracing display.

The format is Chrome's trace events: complete events, times in microseconds. `EngineProfiler`
decides which steps are recorded.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypedDict

_MOST_CALLS = 1_000_000
"""Maximum number of function calls in a trace: about 200 MB of memory."""


class RankSpans(TypedDict):
    """The steps of a rank, as `Worker.record_steps` returns them."""

    name: str
    pid: int
    epoch: float
    """When its `time.perf_counter` was 0, in seconds since the epoch: machines have clocks of their
    own."""
    spans: list[tuple[float, float, float]]
    """Begin and end of each step, and the seconds in which it waited for other ranks."""


class StepTrace:
    """Events of one recording. One thread at a time."""

    def __init__(self, *, with_stack: bool) -> None:
        """`with_stack`: every call of a Python function in a step is recorded, too."""
        self._with_stack = with_stack
        self._zero_ns = time.perf_counter_ns()
        self._spans: list[dict[str, Any]] = []
        self._calls: list[tuple[CodeType, int, int, int]] = []
        """Code, thread, begin and duration in nanoseconds."""
        self.num_steps = 0

    @property
    def is_full(self) -> bool:
        """Whether no further function calls are recorded; steps still are."""
        return len(self._calls) >= _MOST_CALLS

    @contextmanager
    def step(self) -> Iterator[None]:
        """Records the block as a step."""
        before = sys.getprofile()
        if self._with_stack and not self.is_full:
            sys.setprofile(self._recorder())
        begin = time.perf_counter()
        try:
            yield
        finally:
            sys.setprofile(before)
            self.num_steps += 1
            self.span("step", begin, time.perf_counter(), number=self.num_steps)

    def span(self, name: str, begin_s: float, end_s: float, **facts: object) -> None:
        """Adds an event from `begin_s` to `end_s`, in `time.perf_counter` seconds."""
        event = {
            "name": name,
            "ph": "X",
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "ts": begin_s * 1e6 - self._zero_ns / 1e3,
            "dur": (end_s - begin_s) * 1e6,
        }
        self._spans.append({**event, "args": facts} if facts else event)

    def add_rank(self, rank: RankSpans) -> None:
        """Adds the steps of a rank, as a process of its own."""
        shift_s = rank["epoch"] - (time.time() - time.perf_counter())
        process = {"pid": rank["pid"], "tid": rank["pid"]}
        name = {"name": "process_name", "ph": "M", **process, "args": {"name": rank["name"]}}
        self._spans.append(name)
        for begin_s, end_s, waited_s in rank["spans"]:
            self._spans.append(
                {
                    "name": "rank step",
                    "ph": "X",
                    **process,
                    "ts": (begin_s + shift_s) * 1e6 - self._zero_ns / 1e3,
                    "dur": (end_s - begin_s) * 1e6,
                    "args": {"waited_ms": 1e3 * waited_s},
                }
            )

    def write(self, path: Path) -> None:
        """Writes all events; a name that ends in .gz is compressed. Raises OSError."""
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            file.write(",\n".join(map(json.dumps, self._events())))
            file.write("\n]}\n")

    def _recorder(self) -> Callable[[FrameType, str, Any], None]:
        """A function for `sys.setprofile`, for one step. It ignores the ends of functions that
        began before it was set."""
        begun: list[int] = []
        calls, clock, thread = self._calls, time.perf_counter_ns, threading.get_native_id()

        def record(frame: FrameType, event: str, argument: Any) -> None:
            del argument
            if event == "call":
                begun.append(clock())
            elif event == "return" and begun:
                begin = begun.pop()
                calls.append((frame.f_code, thread, begin, clock() - begin))

        return record

    def _events(self) -> Iterator[dict[str, Any]]:
        yield from self._spans
        process = os.getpid()
        for code, thread, begin_ns, length_ns in self._calls:
            yield {
                "name": f"{code.co_filename}({code.co_firstlineno}): {_name(code)}",
                "cat": "python_function",
                "ph": "X",
                "pid": process,
                "tid": thread,
                "ts": (begin_ns - self._zero_ns) / 1e3,
                "dur": length_ns / 1e3,
            }


def _name(code: CodeType) -> str:
    """The function's name with its class; on Python 3.10 without."""
    return str(getattr(code, "co_qualname", code.co_name))

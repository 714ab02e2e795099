"""`Writer`: writes texts to a file descriptor from its own thread, so that callers do not block.

`WriterHandler` formats the records of the log for it, on the caller's thread; the non-blocking
`sys.stderr` uses it, too. What it writes has no control characters and no secrets.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from quire.redaction import redact

_MAX_BYTES = 1 << 20
"""Maximum number of bytes that wait to be written, about ten thousand lines."""
_POLL_MS = 1000
FLUSH_S = 2.0
"""Maximum wait for the remaining texts when a process ends."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Texts that are written with one call."""

    text: bytes
    count: int
    """Number of texts that are lost if the write fails."""


class Writer:
    """Queues texts and writes them; `add` never blocks, even if the descriptor's reader is stuck.

    Texts are written in the order in which they were added. If too many wait, the oldest are
    dropped, because the last ones explain why a process ended; the text that `tell_missing` returns
    for their number takes their place. Thread-safe. A forked child has its own queue.
    """

    def __init__(
        self, fd: int, tell_missing: Callable[[int], bytes], max_bytes: int = _MAX_BYTES
    ) -> None:
        self._fd = fd
        self._tell_missing = tell_missing
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        """Guards the fields below; notified when a text is added or written."""
        self._thread: threading.Thread | None = None
        self._texts: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_missing = 0
        self._is_writing = False
        self._is_stuck = False
        """Whether a flush timed out and nothing was written since."""
        os.register_at_fork(after_in_child=self._forget)

    def add(self, text: bytes) -> None:
        """Queue a text to be written."""
        with self._changed:
            self._texts.append(text)
            self._num_bytes += len(text)
            while self._num_bytes > self._max_bytes and len(self._texts) > 1:
                self._num_bytes -= len(self._texts.popleft())
                self._num_missing += 1
            if self._thread is None:
                self._start_thread()
            self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until all texts are written. Returns False after `timeout_s`, or at once if the last
        flush timed out and nothing was written since."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while self._has_work() and self._thread is not threading.current_thread():
                left_s = end - time.monotonic()
                if left_s <= 0 or self._is_stuck or not self._changed.wait(left_s):
                    self._is_stuck = self._has_work()
                    break
            return not self._has_work()

    def _forget(self) -> None:
        """Reset the state in a forked child: the thread and the waiting texts belong to the
        parent."""
        self._changed = threading.Condition()
        self._thread = None
        self._texts.clear()
        self._num_bytes = self._num_missing = 0
        self._is_writing = self._is_stuck = False

    def _has_work(self) -> bool:
        return bool(self._texts) or self._is_writing

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="quire-log", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many threads, or the interpreter is ending
            self._write_without_waiting()
        else:
            self._thread = thread

    def _write_without_waiting(self) -> None:
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        while self._texts and poller.poll(0):
            self._write(self._take().text)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._texts:
                    self._changed.wait()
                batch = self._take()
                self._is_writing = True
            is_written = self._write(batch.text)
            with self._changed:
                self._num_missing += 0 if is_written else batch.count
                self._is_writing = self._is_stuck = False
                self._changed.notify_all()

    def _take(self) -> _Batch:
        """Take the next texts, at most `PIPE_BUF` bytes of them, after a notice of missing ones.

        Several lines share one write, because each write waits for the GIL while other threads are
        busy.
        """
        missing, self._num_missing = self._num_missing, 0
        texts: list[bytes] = []
        size = 0
        while self._texts and (not size or size + len(self._texts[0]) <= select.PIPE_BUF):
            texts.append(self._texts.popleft())
            size += len(texts[-1])
        self._num_bytes -= size
        notice = self._tell_missing(missing) if missing else b""
        return _Batch(b"".join([notice, *texts]), missing + len(texts))

    def _write(self, text: bytes) -> bool:
        """Block until the text is written; returns False if it cannot be."""
        left = memoryview(text)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # another process made the descriptor non-blocking
                poller = select.poll()
                poller.register(self._fd, select.POLLOUT)
                poller.poll(_POLL_MS)
            except OSError:
                return False
        return True


_CONTROLS = (*range(32), *range(127, 160), 0x2028, 0x2029)
"""The codes of ASCII, of Latin 1, and Unicode's separators of lines."""
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Show the characters after them in another order, as texts of a right-to-left script may need."""
_REMOVED = dict.fromkeys(_CONTROLS) | {9: "\t", 10: "\n"}
_ESCAPED = {code: repr(chr(code))[1:-1] for code in (*_CONTROLS, *_DIRECTIONS)} | {9: "\t"}


def printable(text: str) -> str:
    """The text without control characters, except tabs and line feeds."""
    return text.translate(_REMOVED)


def one_line(text: str) -> str:
    """The text with control characters and those of directions as escapes, except tabs: for a line
    of a log or a table."""
    return text.translate(_ESCAPED)


def say(
    text: object = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False
) -> None:
    """Prints `printable(str(text))`."""
    print(printable(str(text)), end=end, file=file, flush=flush)


_FORMAT = "%(levelname)s %(asctime)s [%(name)s] %(message)s"


class EscapingFormatter(logging.Formatter):
    """Escapes control characters of the message, so that no input can forge a log line, removes
    those of tracebacks, and redacts secrets."""

    def __init__(self) -> None:
        super().__init__(_FORMAT, datefmt="%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        record.msg, record.args = one_line(record.getMessage()), None
        return printable(redact(super().format(record)))


class WriterHandler(logging.Handler):
    """Formats on the caller's thread; the writer's thread writes."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.add(encoded(self.format(record) + "\n"))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        self._writer.flush()


def encoded(text: str) -> bytes:
    """The text in the encoding of standard error."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace")

"""Logging: one logger tree under `quire`, configured only when nobody else did.

A library must not seize its host's logging: a handler is attached to `quire`
alone, and only if neither it nor the root logger has one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire import env

_FORMAT = "%(levelname)s %(asctime)s [%(name)s] %(message)s"
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\t"}


class _EscapingFormatter(logging.Formatter):
    """Escapes control characters of the message, so that no input can forge a log line."""

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        record.msg, record.args = record.getMessage().translate(_ESCAPES), None
        return super().format(record)


def get_logger(name: str) -> logging.Logger:
    """The logger for a module; pass `__name__`. Configures the `quire` tree at first use."""
    root = logging.getLogger("quire")
    if not root.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_EscapingFormatter(_FORMAT, datefmt="%m-%d %H:%M:%S"))
        root.addHandler(handler)
        root.propagate = False
        root.setLevel(env.log_level())
    return logging.getLogger(name)


@contextmanager
def phase(logger: logging.Logger, what: str) -> Iterator[None]:
    """Logs `what` with the seconds it took, so that slow starts explain themselves."""
    begin = time.perf_counter()
    yield
    logger.info("%s: %.2f s", what, time.perf_counter() - begin)


def process_age_s() -> float:
    """Seconds since this process was started, to a hundredth: its imports are part of a start."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    uptime_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK")

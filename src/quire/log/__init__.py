"""Logging: one logger tree under `quire`, configured only if the application has not done so.

A handler is attached only to `quire`, and only if neither it nor the root logger has one.

Logging does not block: a thread writes to standard error (`writer.py`).
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from quire import env
from quire.errors import ConfigError, quoted, reason
from quire.log.writer import FLUSH_S, EscapingFormatter, Writer, WriterHandler, encoded
from quire.redaction import redact

_MAX_CONFIG_BYTES = 1 << 20
"""Maximum size of a logging configuration file."""


_writers: list[Writer] = []
"""The writers of this process: none or one."""


class _UnblockedStderr(io.TextIOBase):
    """Non-blocking `sys.stderr` of Quire's own processes: receives warnings, tracebacks and other
    loggers' output, in order with the log, and redacts secrets."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, fd: int, writer: Writer) -> None:
        self._fd = fd
        self._writer = writer

    def write(self, text: str) -> int:
        self._writer.add(encoded(redact(text)))
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)


def get_logger(name: str) -> logging.Logger:
    """The logger for a module; pass `__name__`. Configures the `quire` tree on first use."""
    root = logging.getLogger("quire")
    is_ours = not root.handlers and not logging.getLogger().handlers
    if is_ours and env.configures_logging():
        handler = _make_handler()
        handler.setFormatter(EscapingFormatter())
        root.addHandler(handler)
        root.propagate = False
        try:
            root.setLevel(env.log_level())
        except ConfigError as error:  # modules create their loggers at import time
            root.setLevel(logging.INFO)
            root.warning("%s", error)
    return logging.getLogger(name)


def configure(level: str | None, config_file: str | None) -> None:
    """Set the minimum log level, or configure all logging from a JSON file for `dictConfig`.

    None: leave it unchanged. In a file, vLLM's logger `vllm` stands for `quire`. Raises ConfigError
    for an unusable file.
    """
    root = logging.getLogger("quire")
    if config_file is not None and env.configures_logging():
        for handler in list(root.handlers):
            root.removeHandler(handler)
        root.propagate = True
        _configure_from(config_file)
    if level is not None and level != "NOTSET":
        root.setLevel(level)


def _configure_from(file: str) -> None:
    import json
    import logging.config

    try:
        path = env.expanded(file)
        if not path.is_file():  # reading a device or a pipe may never end
            raise ValueError("it must be a regular file")
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError(f"it must have at most {_MAX_CONFIG_BYTES} bytes")
        config = json.loads(path.read_text(encoding="utf-8"))
        config = {"disable_existing_loggers": False, **config}
        loggers = config.get("loggers", {})
        if "vllm" in loggers:
            config["loggers"] = {"quire": loggers["vllm"], **loggers}
        logging.config.dictConfig(config)
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise ConfigError(
            f"log_config_file {quoted(file)} cannot be used: {reason(error)}; it must be a JSON "
            "file for Python's logging.config.dictConfig"
        ) from None


def unblock_stderr() -> None:
    """Make `sys.stderr` of this process non-blocking, unless it was replaced by another stream.

    For Quire's own processes; the library does not call this in an application's process.
    """
    fd = _stderr_fd()
    if fd is not None:
        sys.stderr = _UnblockedStderr(fd, _writer(fd))


def flush() -> None:
    """Wait until all log records are written, at most `FLUSH_S` seconds."""
    for handler in logging.getLogger("quire").handlers:
        handler.flush()
    for writer in _writers:  # a handler may write to the writer through `sys.stderr`
        writer.flush()


def _make_handler() -> logging.Handler:
    """A handler for standard error; a plain one if the application replaced `sys.stderr`."""
    fd = _stderr_fd()
    if fd is not None:
        return WriterHandler(_writer(fd))
    return logging.NullHandler() if sys.stderr is None else logging.StreamHandler()


def _stderr_fd() -> int | None:
    """The file descriptor of standard error; None if it is closed or was replaced."""
    stream = sys.__stderr__
    if stream is None or stream is not sys.stderr:
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=1)
def _writer(fd: int) -> Writer:
    """The writer of this process."""
    writer = Writer(fd, _tell_missing)
    _writers.append(writer)
    atexit.register(writer.flush, FLUSH_S)
    return writer


def _tell_missing(count: int) -> bytes:
    record = logging.LogRecord(
        __name__, logging.WARNING, __file__, 0,
        "%d messages are missing here: standard error was not read", (count,), None,
    )  # fmt: skip
    return encoded(EscapingFormatter().format(record) + "\n")


@contextmanager
def phase(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log `what` with the seconds that the `with` block took."""
    begin = time.perf_counter()
    yield
    logger.info("%s: %.2f s", what, time.perf_counter() - begin)


def process_age_s() -> float:
    """Seconds since this process was started, including imports; resolution 0.01 s."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    uptime_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return uptime_s - int(fields[19]) / os.sysconf("SC_CLK_TCK")

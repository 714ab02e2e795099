"""How a record becomes a line of the log: formatted on the caller's thread, written by another."""

from __future__ import annotations

import logging
import sys

from quire.log.writer import Writer, one_line, printable
from quire.redaction import redact

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

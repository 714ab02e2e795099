"""`init_logger`: a logger with vLLM's `info_once` and the like."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from quire.log import get_logger


def init_logger(name: str) -> logging.Logger:
    """The logger of this name, which also has `debug_once`, `info_once`, `warning_once` and
    `error_once`."""
    logger = get_logger(name)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        method = f"{logging.getLevelName(level).lower()}_once"
        setattr(logger, method, partial(_log_once, name, level))
    return logger


@contextmanager
def suppress_logging(level: int = logging.INFO) -> Iterator[None]:
    """No messages of this level, or of a lower one, in the `with` block."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


def _log_once(name: str, level: int, message: str, *args: Any, scope: str = "process") -> None:
    """`scope` is vLLM's choice of processes; this is one process."""
    del scope
    _log_first(name, level, message, *args)


@lru_cache(maxsize=1024)
def _log_first(name: str, level: int, message: str, *args: Any) -> None:
    logging.getLogger(name).log(level, message, *args, stacklevel=3)

"""`init_logger`: a logger with vLLM's methods `info_once`, `warning_once` and so on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from quire.log import get_logger


def init_logger(name: str) -> logging.Logger:
    """Return the logger of this name, with the additional methods `debug_once`, `info_once`,
    `warning_once` and `error_once`."""
    logger = get_logger(name)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        method = f"{logging.getLevelName(level).lower()}_once"
        setattr(logger, method, partial(_log_once, name, level))
    return logger


@contextmanager
def suppress_logging(level: int = logging.INFO) -> Iterator[None]:
    """Suppresses messages of this level and lower levels in the `with` block."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


def _log_once(name: str, level: int, message: str, *args: Any, scope: str = "process") -> None:
    """Log a message the first time. `scope`, vLLM's choice of processes, has no effect."""
    del scope
    _log_first(name, level, message, *args)


@lru_cache(maxsize=1024)
def _log_first(name: str, level: int, message: str, *args: Any) -> None:
    logging.getLogger(name).log(level, message, *args, stacklevel=3)

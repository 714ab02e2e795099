"""Thresholds of Python's cyclic garbage collector.

A full collection examines all objects that the collector tracks, for about a tenth of a millisecond
per thousand objects, and holds the GIL. By default Python runs one whenever their number has grown
by a quarter: several times while many clients connect.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (1_000, 20, 100)
"""Thresholds of the three generations: new objects until the youngest one is collected, its
collections until the next one is, and its collections until a full one. So a full collection runs
after about two million objects that outlive their request."""


_WHILE_STARTING = (50_000, 20, 100)
"""Thresholds during the start. The imports of a server create about 80,000 permanent objects; with
Python's defaults, 150 collections would take an eighth of the imports' time."""


def expect_imports() -> None:
    """Sets thresholds for the imports of a command. Called when a command begins."""
    gc.set_threshold(*_WHILE_STARTING)


def expect_crowds() -> None:
    """Excludes existing objects from collections and makes full collections rare. Called when a
    server is ready."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)

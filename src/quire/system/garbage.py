"""When a program looks for cyclic garbage.

A full collection looks through all objects that Python's collector knows, about a tenth of a
millisecond for each thousand, and holds the GIL. By Python's defaults it comes whenever their
number has grown by a quarter: several times while a crowd connects.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (1_000, 20, 100)
"""Objects that survive until the youngest generation is collected; collections of it until the next
one is; collections of that until a full one. So a full one comes after some two million objects
that outlive their request."""


_WHILE_STARTING = (50_000, 20, 100)
"""The same. The imports of a server make some 80,000 objects, which stay; by Python's defaults 150
collections look through them, which takes an eighth of the imports' time."""


def expect_imports() -> None:
    """Called when a command begins."""
    gc.set_threshold(*_WHILE_STARTING)


def expect_crowds() -> None:
    """Called when a server is ready: what exists stays, and full collections become rare."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)

"""Timestamps of requests: seconds since the epoch, from a clock that never jumps.

The system's clock can be set while requests run; the difference of two of its values is then not
a duration. This clock starts at the system's time and advances with `time.monotonic`, which all
processes of a machine share.
"""

from __future__ import annotations

import time

_epoch = time.time() - time.monotonic()


def now() -> float:
    """Seconds since the epoch."""
    return _epoch + time.monotonic()


def epoch() -> float:
    """The time at which `time.monotonic` is 0, for `set_epoch` in another process."""
    return _epoch


def set_epoch(value: float) -> None:
    """Makes this process's timestamps comparable with those of the process that sent `value`."""
    global _epoch
    _epoch = value

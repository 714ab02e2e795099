"""Parts of `tools.gpu_check` with checks that raise, end the process, spoil the GPU or hang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

from tools.gpu_check.guard import guarded
from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row

from quire.backends.cuda.device import Device
from quire.errors import BackendError, DeviceError


def _good(name: str) -> Iterator[Row]:
    yield Row(name, 1.0)


def _raises() -> Iterator[Row]:
    yield Row("before the error", 2.0)
    raise BackendError("the kernel cannot be launched")


def _dies() -> Iterator[Row]:
    os.kill(os.getpid(), signal.SIGSEGV)
    yield from ()


def _spoils() -> Iterator[Row]:
    yield from ()
    raise DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS")


def _hangs() -> Iterator[Row]:
    time.sleep(1000)
    yield from ()


def _not_a_number() -> Iterator[Row]:
    yield Row("rate", float("nan"))


def check_faults(device: Device, sizes: Sizes) -> Iterator[Row]:
    """All faults, and a good check after each of them."""
    del device
    faults = {
        "raises": _raises, "gives no number": _not_a_number, "dies": _dies, "spoils": _spoils,
        "hangs": _hangs,
    }  # fmt: skip
    for name, fault in faults.items():
        yield from guarded(sizes, name, fault())
        yield from guarded(sizes, f"after {name}", _good(f"after {name}"))


def check_nothing(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Fails before its first check."""
    del device, sizes
    yield from ()
    raise BackendError("no memory")

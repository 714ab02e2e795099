"""The first part: launch of one compiled kernel, copies, and what they take."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from tools.gpu_check.guard import guarded
from tools.gpu_check.launches import held, seconds_of, wait
from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row, equal

from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.lowering.linear import reduce_kernel

_WIDTH, _CHUNKS = 256, 3


def check_launch(device: Device, sizes: Sizes) -> Iterator[Row]:
    """The sum of a product's chunks, which is exact; copies; and what they take."""
    yield from guarded(sizes, "facts", _facts(device))
    yield from guarded(sizes, "numbers of one kernel", _numbers(device))
    yield from guarded(sizes, "launches", _launches(device, sizes))
    yield from guarded(sizes, "copies", _copies(device, sizes))


def _facts(device: Device) -> Iterator[Row]:
    facts = device.facts
    yield Row("GPU", facts.name, f"sm_{facts.architecture}, {facts.num_processors} processors")
    yield Row("memory", facts.total_bytes / 2**30, "GiB")
    yield Row("peak bandwidth by its properties", facts.bytes_per_second / 1e9, "GB/s")


def _numbers(device: Device) -> Iterator[Row]:
    launch = _launch(device)
    begin = time.perf_counter()
    device.launch(launch)
    found = np.zeros(_WIDTH, np.float32)
    device.download(launch.args["y"], found)  # type: ignore[arg-type]
    yield Row("first launch and its result", 1e3 * (time.perf_counter() - begin), "ms")
    wanted = np.arange(_CHUNKS * _WIDTH, dtype=np.float32).reshape(_CHUNKS, _WIDTH).sum(0)
    yield equal("numbers of one kernel", int((found != wanted).sum()), found.size)


def _launches(device: Device, sizes: Sizes) -> Iterator[Row]:
    launch, least = _launch(device), sizes.least_seconds
    y = launch.args["y"]
    finish = lambda: wait(device, y)  # type: ignore[arg-type]  # noqa: E731
    seconds = seconds_of(lambda: device.launch(launch), finish, least)
    yield Row("a launch, one after the other", 1e6 * seconds, "us")
    yield Row("a wait with a copy of 4 bytes", 1e6 * seconds_of(finish, finish, least) / 2, "us")


def _launch(device: Device) -> Launch:
    parts, bias, y = (held(device, 4 * _WIDTH * count) for count in (_CHUNKS, 1, 1))
    device.upload(parts, np.arange(_CHUNKS * _WIDTH, dtype=np.float32))
    args = {
        "parts": parts, "bias": bias, "y": y, "num_rows": 1, "N": _WIDTH, "num_chunks": _CHUNKS,
        "stride_y": _WIDTH, "has_bias": 0,
    }  # fmt: skip
    return Launch(reduce_kernel("fp32"), (1, 1), args)


def _copies(device: Device, sizes: Sizes) -> Iterator[Row]:
    """By way of pinned memory, and on the device."""
    size, least = sizes.copied_bytes, sizes.least_seconds
    first, second = held(device, size), held(device, size)
    data = np.zeros(size // 4, np.uint8)
    rates = {
        "upload": lambda: device.upload(first, data),
        "download": lambda: device.download(first, data),
    }
    for name, work in rates.items():
        seconds = seconds_of(work, lambda: wait(device, first), least)
        yield Row(name, data.size / seconds / 1e9, "GB/s")
    seconds = seconds_of(lambda: device.copy(first, second), lambda: wait(device, second), least)
    yield Row("copy on the GPU, read and written", 2 * size / seconds / 1e9, "GB/s")

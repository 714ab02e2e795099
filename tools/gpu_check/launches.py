"""Buffers with numbers, and the time of launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.kv_formats import narrow_to_bfloat16
from quire.errors import BackendError

_POOL = 1 << 24


def held(device: Device, num_bytes: int) -> Buffer:
    """New memory, filled with zeros, which is kept until the process ends."""
    memory = Memory()
    buffer = memory.add(num_bytes)
    device.hold(memory)
    return buffer


def numbers(count: int, seed: int = 0) -> NDArray[np.uint16]:
    """Random numbers of bfloat16 around 0, as their bits."""
    random = np.random.default_rng(seed)
    return narrow_to_bfloat16(random.standard_normal(count, np.float32) * np.float32(0.05))


def fill(device: Device, buffer: Buffer) -> None:
    """Random numbers of bfloat16, copied on the device from a few million of them."""
    pool = numbers(min(_POOL, buffer.num_bytes // 2))
    device.upload(buffer, pool)
    done = pool.nbytes
    while done < buffer.num_bytes:
        size = min(done, buffer.num_bytes - done)
        device.copy(buffer.from_byte(0, size), buffer.from_byte(done, size))
        done += size


def wait(device: Device, buffer: Buffer) -> None:
    """Until all launches are done."""
    device.download(buffer.from_byte(0, 4), np.zeros(1, np.int32))


def seconds_of(work: Callable[[], None], finish: Callable[[], None], least: float) -> float:
    """The time of one call of `work`, which is repeated for `least` seconds."""
    work()
    finish()
    count = 1
    while True:
        begin = time.perf_counter()
        for _ in range(count):
            work()
        finish()
        elapsed = time.perf_counter() - begin
        if elapsed >= least:
            return elapsed / count
        count = max(2 * count, round(count * least / max(elapsed, 1e-6)))


def launch_seconds(
    device: Device, launches: Sequence[Launch], buffer: Buffer, least: float
) -> tuple[float, bool]:
    """The time of launches that follow each other, and whether they were recorded. Without a
    recording the time may be that of the host."""

    def launch() -> None:
        for one in launches:
            device.launch(one)

    launch()  # loads the kernels
    wait(device, buffer)
    with suppress(BackendError):
        recording = device.record(launch)
        return seconds_of(recording.replay, lambda: wait(device, buffer), least), True
    return seconds_of(launch, lambda: wait(device, buffer), least), False

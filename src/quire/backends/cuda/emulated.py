"""`EmulatedDevice`: the contract of a GPU on NumPy arrays, for machines without one.

A launch calls the kernel's twin: the function of the same name in the module of the same name in
`twins/`. Results differ from a GPU's in the last bits. It is for tests, and far slower than the
CPU backend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from importlib import import_module
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.device import Device, DeviceFacts, Download, Recording
from quire.backends.cuda.kernel import ARRAY_TYPES, DeviceRanks, Kernel, Launch
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.records import StepBatch
from quire.errors import BackendError
from quire.ranks import RankGroup

_PROCESSORS = 4
"""Few, so that small tests also run kernels that do not split their work."""


class EmulatedDevice(Device):
    """NumPy computes."""

    def __init__(self, num_bytes: int = 1 << 40, *, is_lazy: bool = False) -> None:
        """`num_bytes`: the memory that it seems to have. `is_lazy`: launches and copies are done
        when the host waits for a result, as if the device were slow."""
        super().__init__()
        self._is_lazy, self._queue = is_lazy, deque[Callable[[], None]]()
        self._computing = RLock()
        """Held while memory is taken or given back, or what is queued is done: by any thread."""
        self.num_waits = 0
        """How often the host has waited."""
        self._left = self._total = num_bytes
        self._recorded: list[Launch] | None = None
        self.launches: list[Kernel] | None = None
        """If it is a list: the kernels that were launched, for tests."""

    @property
    def facts(self) -> DeviceFacts:
        """Facts of a GPU with few processors."""
        return DeviceFacts("emulated", 0, self._total, self._left, _PROCESSORS, 0.0, True)

    def hold(self, memory: Memory) -> None:
        """An array of zeros, which the system commits as it is written."""
        with self._computing:
            if memory.handle is not None:
                return
            if memory.num_bytes > self._left:
                raise BackendError(f"the emulated device has no {memory.num_bytes} bytes left")
            self._left -= memory.num_bytes
            memory.handle = np.zeros(memory.num_bytes, np.uint8)

    def _free(self, memory: Memory) -> None:
        """Drops the array."""
        with self._computing:
            if memory.handle is not None:
                self.finish()
                self._left += memory.num_bytes
                memory.handle = None

    def launch(self, launch: Launch) -> None:
        """Calls the twin with an array for each pointer, from there to the end of its buffer."""
        if self._recorded is not None:
            self._recorded.append(launch)
            return
        if 0 in launch.grid:
            return
        if self.launches is not None:
            self.launches.append(launch.kernel)
        self._do(lambda: self._compute(launch))

    def _compute(self, launch: Launch) -> None:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            self._call(launch.kernel, launch.grid, self._arguments(launch))

    def _call(self, kernel: Kernel, grid: tuple[int, ...], args: Mapping[str, Any]) -> None:
        twin = getattr(import_module(f"quire.backends.cuda.twins.{kernel.module}"), kernel.name)
        twin(grid, **args, **dict(kernel.constants))

    def _arguments(self, launch: Launch) -> dict[str, Any]:
        args: dict[str, Any] = {}
        for name, kind in launch.kernel.types:
            value = launch.args[name]
            if kind.startswith("*") != isinstance(value, Buffer):
                raise BackendError(f"{launch.kernel}: argument {name} is not of type {kind}")
            number = ARRAY_TYPES[kind.removeprefix("*")]
            args[name] = _bytes(value).view(number) if isinstance(value, Buffer) else number(value)
        if len(launch.args) != len(args):
            raise BackendError(f"{launch.kernel} has other arguments than {sorted(launch.args)}")
        return args

    def upload(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """Copies at once."""
        self._no_copies()
        raw = np.array(data, order="C").reshape(-1).view(np.uint8)
        part = target.from_byte(0, raw.size)
        _bytes(part)
        self._do(lambda: _bytes(part).__setitem__(slice(None), raw))

    def download(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """Copies at once."""
        self._no_copies()
        self.num_waits += 1
        self.finish()
        raw = out.reshape(-1).view(np.uint8)
        raw[:] = _bytes(source.from_byte(0, raw.size))

    def send(self, source: Buffer) -> Download:
        """A lazy device copies when it is waited for."""
        self._no_copies()
        sent = _EmulatedDownload(self, source.num_bytes)
        self._do(lambda: sent.fill(_bytes(source)))
        return sent

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copies at once."""
        self._no_copies()
        self._do(lambda: _bytes(target).__setitem__(slice(None), _bytes(source)))

    def _do(self, work: Callable[[], None]) -> None:
        """Now, or when the host waits."""
        if self._is_lazy:
            self._queue.append(work)
        else:
            work()

    def finish(self) -> None:
        """Does what was not done yet, in order."""
        with self._computing:
            while self._queue:
                self._queue.popleft()()

    def read(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """Copies at once, also before what a lazy device has not done yet."""
        raw = out.reshape(-1).view(np.uint8)
        raw[:] = _bytes(source.from_byte(0, raw.size))

    def write(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """Copies at once, also before what a lazy device has not done yet."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        _bytes(target.from_byte(0, raw.size))[:] = raw

    def _record(self, work: Callable[[], None]) -> Recording:
        """A list of the launches."""
        self._recorded = []
        try:
            work()
            return _EmulatedRecording(self, self._recorded)
        finally:
            self._recorded = None

    def connect(self, group: RankGroup) -> DeviceRanks:
        """Through the host."""
        return _HostRanks(self, group)

    def close(self) -> None:
        """Nothing is held but by memories."""

    def _no_copies(self) -> None:
        if self._recorded is not None:
            raise BackendError("copies cannot be recorded")


class _HostRanks(DeviceRanks):
    """Exchanges through the memory of the host, which waits for the device. For tests."""

    def __init__(self, device: Device, group: RankGroup) -> None:
        self._device, self._group = device, group

    def begin(self, batch: StepBatch) -> None:
        """Messages have the number of the step."""
        self._group.begin(batch.token_ids)

    def gather(self, own: Buffer, parts: Buffer) -> None:
        """One row of bytes, of which each rank has a part."""
        row = np.empty((1, parts.num_bytes), np.uint8)
        size, count = own.num_bytes, self._group.num_ranks
        spans = [(rank * size, size) for rank in range(count)]
        first, _ = spans[self._group.rank]
        self._device.download(own, row[0, first : first + size])
        self._group.columns(row, spans)
        self._device.upload(parts, row)

    def close(self) -> None:
        """The connections are those of the group."""


class _EmulatedDownload(Download):
    def __init__(self, device: EmulatedDevice, num_bytes: int) -> None:
        self._device, self._found = device, np.zeros(num_bytes, np.uint8)

    def fill(self, data: NDArray[np.uint8]) -> None:
        self._found[:] = data

    def wait(self) -> NDArray[np.uint8]:
        self._device.num_waits += 1
        self._device.finish()
        return self._found


class _EmulatedRecording(Recording):
    def __init__(self, device: EmulatedDevice, launches: list[Launch]) -> None:
        self._device, self._launches = device, launches

    def replay(self) -> None:
        for launch in self._launches:
            self._device.launch(launch)

    def close(self) -> None:
        self._launches = []


def _bytes(buffer: Buffer) -> NDArray[np.uint8]:
    """The bytes themselves. Raises BackendError for those of a memory that is not held."""
    if buffer.memory.handle is None:
        raise BackendError("the device does not hold this memory")
    held: NDArray[np.uint8] = buffer.memory.handle[buffer.begin : buffer.begin + buffer.num_bytes]
    if len(held) != buffer.num_bytes:
        raise BackendError("a buffer is larger than its memory")
    return held

"""`EmulatedDevice`: the contract of a GPU on NumPy arrays, for machines without one.

A launch calls the kernel's twin: the function of the same name in the module of the same name in
`twins/`. Results differ from a GPU's in the last bits. It is for tests, and far slower than the
CPU backend.

It refuses what a GPU refuses, or would compute wrongly without a word, and does nothing before the
host waits: as late as a GPU may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from importlib import import_module
from threading import RLock, get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.device import Device, DeviceFacts, Download, Recording, raw_bytes
from quire.backends.cuda.kernel import ARRAY_TYPES, DeviceRanks, Exchange, Kernel, Launch
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.records import StepBatch
from quire.errors import BackendError
from quire.ranks import RankGroup

_PROCESSORS = 4
"""Few, so that small tests also run kernels that do not split their work."""
_MOST_PROGRAMS = (2**31 - 1, 65535, 65535)
"""Sizes of a grid. Source: NVIDIA, "CUDA C++ Programming Guide", section "Compute Capabilities"."""
_FREED = 0xA5
"""The bytes of memory that was given back."""


class EmulatedDevice(Device):
    """NumPy computes."""

    def __init__(self, num_bytes: int = 1 << 40, *, is_lazy: bool = True) -> None:
        """`num_bytes`: the memory that it seems to have. `is_lazy`: launches and copies are done
        when the host waits for a result, as if the device were slow; otherwise at once."""
        super().__init__()
        self._is_lazy, self._queue = is_lazy, deque[Callable[[], None]]()
        self._computing = RLock()
        """Held while memory is taken or given back, or what is queued is done: by any thread."""
        self.num_waits = 0
        """How often the host has waited."""
        self._left = self._total = num_bytes
        self._recorded: list[Launch | Exchange] | None = None
        self._recorder = 0
        """The thread that records."""
        self._loaded: set[Kernel] = set()
        self.launches: list[Kernel] | None = None
        """If it is a list: the kernels that were launched, for tests."""

    @property
    def facts(self) -> DeviceFacts:
        return DeviceFacts("emulated", 0, self._total, self._left, _PROCESSORS, 0.0, True)

    def hold(self, memory: Memory) -> None:
        """An array of zeros, which the system commits as it is written."""
        with self._computing:
            if memory.handle is not None:
                return
            self._not_recorded("memory cannot be taken")
            if memory.num_bytes > self._left:
                raise BackendError(f"the emulated device has no {memory.num_bytes} bytes left")
            self._left -= memory.num_bytes
            memory.handle = np.zeros(memory.num_bytes, np.uint8)

    def _free(self, memory: Memory) -> None:
        """Drops the array, and spoils it for those who still have it."""
        with self._computing:
            if memory.handle is not None:
                self.finish()
                self._left += memory.num_bytes
                memory.handle[:] = _FREED
                memory.handle = None

    def launch(self, launch: Launch) -> None:
        """Calls the twin with an array for each pointer, from there to the end of its buffer."""
        if 0 in launch.grid:
            return
        self._check(launch)
        if self._is_recording:
            if launch.kernel not in self._loaded:
                raise BackendError(f"{launch.kernel} cannot be loaded while launches are recorded")
            self.note(launch)
            return
        self._loaded.add(launch.kernel)
        if self.launches is not None:
            self.launches.append(launch.kernel)
        self._do(lambda: self._compute(launch))

    def _check(self, launch: Launch) -> None:
        """Raises BackendError for a launch that a GPU refuses, or would compute wrongly."""
        kernel, args = launch.kernel, launch.args
        for size, most in zip(launch.grid, _MOST_PROGRAMS, strict=False):
            if not isinstance(size, int) or not 0 < size <= most:
                raise BackendError(f"{kernel}: a grid of {launch.grid} is too large, or not whole")
        if args.keys() != {name for name, _ in kernel.types}:
            raise BackendError(f"{kernel} has other arguments than {sorted(args)}")
        for name, kind in kernel.types:
            value, number = args[name], ARRAY_TYPES[kind.removeprefix("*")]
            if kind.startswith("*"):
                is_right = isinstance(value, Buffer) and not value.begin % number().nbytes
            elif kind.startswith("fp"):
                is_right = isinstance(value, int | float)
            else:
                limits = np.iinfo(number)  # type: ignore[type-var]
                is_right = isinstance(value, int) and limits.min <= value <= limits.max
            if not is_right:
                raise BackendError(f"{kernel}: argument {name} is not of type {kind}: {value}")
            if isinstance(value, Buffer):
                _bytes(value)
        if not kernel.fits(args):
            raise BackendError(f"{kernel}: an argument is not a multiple of 16")

    def _compute(self, launch: Launch) -> None:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            self._call(launch.kernel, launch.grid, self._arguments(launch))

    def _call(self, kernel: Kernel, grid: tuple[int, ...], args: Mapping[str, Any]) -> None:
        twin = getattr(import_module(f"quire.backends.cuda.twins.{kernel.module}"), kernel.name)
        twin(grid, **args, **dict(kernel.constants))

    def _arguments(self, launch: Launch) -> dict[str, Any]:
        args: dict[str, Any] = {}
        for name, kind in launch.kernel.types:
            value, number = launch.args[name], ARRAY_TYPES[kind.removeprefix("*")]
            if isinstance(value, Buffer):
                held = _bytes(value)
                args[name] = held[: held.size - held.size % number().nbytes].view(number)
            else:
                args[name] = number(value)
        return args

    def upload(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """A lazy device copies when it is waited for, what the array has now."""
        self._not_recorded("a copy cannot be recorded")
        raw = raw_bytes(data).copy()
        part = target.from_byte(0, raw.size)
        _bytes(part)
        self._do(lambda: _bytes(part).__setitem__(slice(None), raw))

    def download(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """Copies at once."""
        self._not_recorded("a copy cannot be recorded")
        self.num_waits += 1
        raw = raw_bytes(out)
        self.finish()
        raw[:] = _bytes(source.from_byte(0, raw.size))

    def send(self, source: Buffer) -> Download:
        """A lazy device copies when it is waited for."""
        self._not_recorded("a copy cannot be recorded")
        _bytes(source)
        sent = _EmulatedDownload(self, source.num_bytes)
        self._do(lambda: sent.fill(_bytes(source)))
        return sent

    def copy(self, source: Buffer, target: Buffer) -> None:
        """A lazy device copies when it is waited for."""
        self._not_recorded("a copy cannot be recorded")
        if source.num_bytes != target.num_bytes:
            raise BackendError(f"{source.num_bytes} bytes are copied to {target.num_bytes}")
        _bytes(source), _bytes(target)
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
        """Does what was launched before, and copies."""
        raw = raw_bytes(out)
        with self._computing:
            self.finish()
            raw[:] = _bytes(source.from_byte(0, raw.size))

    def write(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """Does what was launched before, and copies."""
        raw = raw_bytes(data)
        with self._computing:
            self.finish()
            _bytes(target.from_byte(0, raw.size))[:] = raw

    @property
    def _is_recording(self) -> bool:
        return self._recorded is not None and self._recorder == get_ident()

    def _record(self, work: Callable[[], None]) -> Recording:
        """A list of the launches."""
        noted: list[Launch | Exchange] = []
        self._recorded, self._recorder = noted, get_ident()
        try:
            work()
            return _EmulatedRecording(self, noted)
        finally:
            self._recorded = None

    def note(self, action: Launch | Exchange) -> bool:
        """Whether launches are recorded: then this is done when they are done again."""
        if not self._is_recording or self._recorded is None:
            return False
        self._recorded.append(action)
        return True

    def connect(self, group: RankGroup) -> DeviceRanks:
        """Through the host."""
        return _HostRanks(self, group)

    def close(self) -> None:
        """Nothing is held but by memories."""

    def _not_recorded(self, what: str) -> None:
        if self._is_recording:
            raise BackendError(f"{what} while launches are recorded")


class _HostRanks(DeviceRanks):
    """Exchanges through the memory of the host, which waits for the device. For tests."""

    def __init__(self, device: EmulatedDevice, group: RankGroup) -> None:
        self._device, self._group = device, group

    def begin(self, batch: StepBatch) -> None:
        """Messages have the number of the step."""
        self._group.begin(batch.token_ids)

    def gather(self, own: Buffer, parts: Buffer) -> None:
        """One row of bytes, of which each rank has a part."""
        if self._device.note(Exchange(self, own, parts)):
            return
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
    """Launches whose memory must not move: a GPU has recorded its addresses."""

    def __init__(self, device: EmulatedDevice, actions: list[Launch | Exchange]) -> None:
        self._device, self._actions = device, actions
        self._handles = [(memory, memory.handle) for one in actions for memory in _memories(one)]

    def replay(self) -> None:
        if any(memory.handle is not handle for memory, handle in self._handles):
            raise BackendError("memory of recorded launches was given back")
        for one in self._actions:
            self._device.run(one)

    def close(self) -> None:
        self._actions, self._handles = [], []


def _memories(action: Launch | Exchange) -> list[Memory]:
    """The memories that an action reads or writes."""
    if isinstance(action, Exchange):
        return [action.own.memory, action.parts.memory]
    return [value.memory for value in action.args.values() if isinstance(value, Buffer)]


def _bytes(buffer: Buffer) -> NDArray[np.uint8]:
    """The bytes themselves. Raises BackendError for those of a memory that is not held."""
    if buffer.memory.handle is None:
        raise BackendError("the device does not hold this memory")
    held: NDArray[np.uint8] = buffer.memory.handle[buffer.begin : buffer.begin + buffer.num_bytes]
    if len(held) != buffer.num_bytes:
        raise BackendError("a buffer is larger than its memory")
    return held

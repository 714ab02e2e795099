"""`CudaDevice`: the contract of a GPU with NVIDIA's driver, by way of the package `cuda-core`.

The only file that imports `cuda`. Kernels come from `compiled.py`. Launches, uploads and downloads
are done on one stream; `read` and `write`, which any thread may call, have another one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.compiled import find_cubin
from quire.backends.cuda.device import Device, DeviceFacts, Download, Recording
from quire.backends.cuda.kernel import ARRAY_TYPES, DeviceRanks, Kernel, Launch
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.cuda.nccl import NcclRanks
from quire.errors import BackendError
from quire.ranks import RankGroup

_STAGING_BYTES = 32 << 20
_STATIC_SHARED_BYTES = 48 << 10
"""A kernel that needs more shared memory must ask for it before it is launched."""
_NULL = 0


class CudaDevice(Device):
    """A GPU that CUDA sees; `CUDA_VISIBLE_DEVICES` chooses and orders them."""

    def __init__(self, index: int = 0) -> None:
        """Raises BackendError if the machine has no GPU with this index, or without `cuda-core`."""
        super().__init__()
        self._index = index
        with _errors(f"the GPU {index} cannot be used"):
            from cuda import core

            if index >= (count := count_gpus()):
                raise BackendError(f"there is no GPU {index}: CUDA sees {count}, from 0 on")
            self._core: Any = core
            self._gpu = core.Device(index)
            self._gpu.set_current()
            self._stream = self._gpu.create_stream()
            self._copies = _Copies(core, self._gpu.create_stream())
            self._uploads = _Copies(core, self._stream)
            self._downloads = _Downloads(core, self._stream)
            own = self._gpu.properties
            major, minor = own.compute_capability_major, own.compute_capability_minor
            self._architecture = 10 * major + minor
        self._kernels: dict[Kernel, tuple[Any, Any]] = {}
        self._target = self._stream

    @property
    def facts(self) -> DeviceFacts:
        """Read from the driver."""
        with _errors("the GPU does not answer"):
            from cuda.bindings import driver

            own = self._gpu.properties
            _, free, total = driver.cuMemGetInfo()
            # Kilohertz, at double data rate, and bits.
            bandwidth = 2e3 * own.memory_clock_rate * own.global_memory_bus_width / 8
            return DeviceFacts(
                name=self._gpu.name,
                architecture=self._architecture,
                total_bytes=int(total),
                free_bytes=int(free),
                num_processors=own.multiprocessor_count,
                bytes_per_second=float(bandwidth),
            )

    def hold(self, memory: Memory) -> None:
        """One allocation of the driver, on the stream of copies: launches may be recorded."""
        if memory.handle is not None:
            return
        with _errors(f"the GPU has no {memory.num_bytes} bytes left"):
            self._gpu_of_thread()
            memory.handle = self._copies.allocate(self._gpu, max(1, memory.num_bytes))

    def _free(self, memory: Memory) -> None:
        """After everything that was launched."""
        if memory.handle is not None:
            with _errors("memory of the GPU cannot be given back"):
                self._gpu_of_thread()
                memory.handle.close(self._stream)
                self._stream.sync()
            memory.handle = None

    def launch(self, launch: Launch) -> None:
        """Loads the kernel, if it is the first time."""
        if 0 in launch.grid:
            return
        with _errors(f"the kernel {launch.kernel} cannot be launched"):
            function, block = self._function(launch.kernel)
            grid = (*launch.grid, 1, 1)[:3]
            config = self._core.LaunchConfig(grid=grid, block=block[0], shmem_size=block[1])
            # Triton adds two pointers to scratch memory, which these kernels do not need.
            args = [*_arguments(launch), _NULL, _NULL]
            self._core.launch(self._target, config, function, *args)

    def _function(self, kernel: Kernel) -> tuple[Any, tuple[int, int]]:
        """The loaded kernel, the threads of a block and its shared memory."""
        if kernel not in self._kernels:
            cubin = find_cubin(kernel, self._architecture)
            facts = cubin.facts
            function = self._core.ObjectCode.from_cubin(cubin.code).get_kernel(facts.symbol)
            if facts.shared_bytes > _STATIC_SHARED_BYTES:
                self._allow_shared(function, facts.shared_bytes)
            self._kernels[kernel] = (function, (32 * facts.num_warps, facts.shared_bytes))
        return self._kernels[kernel]

    def _allow_shared(self, function: Any, num_bytes: int) -> None:
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _, device = driver.cuDeviceGet(self._index)
        [error] = driver.cuKernelSetAttribute(attribute, num_bytes, function.handle, device)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise BackendError(f"a block cannot have {num_bytes} bytes of shared memory: {error}")

    def upload(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """By way of pinned memory, so that the copy is done while the host goes on."""
        with _errors("the GPU takes no data"):
            self._gpu_of_thread()
            self._uploads.to_device(_address(target), _raw(data))

    def download(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """By way of pinned memory."""
        with _errors("the GPU gives no data"):
            self._uploads.to_host(_address(source), _raw(out))

    def send(self, source: Buffer) -> Download:
        """To pinned memory, and an event after it."""
        with _errors("the GPU gives no data"):
            return self._downloads.send(_address(source), source.num_bytes)

    def copy(self, source: Buffer, target: Buffer) -> None:
        """On the device."""
        with _errors("the GPU copies no data"):
            view = self._core.Buffer.from_handle
            view(_address(target), target.num_bytes).copy_from(
                view(_address(source), source.num_bytes), stream=self._stream
            )

    def read(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """On a stream of its own."""
        with _errors("the GPU gives no data"):
            self._gpu_of_thread()
            self._copies.to_host(_address(source), _raw(out))

    def write(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """On a stream of its own."""
        with _errors("the GPU takes no data"):
            self._gpu_of_thread()
            self._copies.to_device(_address(target), _raw(data))
            self._copies.wait()

    def _gpu_of_thread(self) -> None:
        """Each thread has to choose the GPU once."""
        self._core.Device(self._index).set_current()

    def _record(self, work: Callable[[], None]) -> Recording:
        """A CUDA graph."""
        with _errors("the launches cannot be recorded"):
            builder = self._stream.create_graph_builder()
            builder.begin_building("thread_local")
            self._target = builder
            try:
                work()
            finally:
                self._target = self._stream
                builder.end_building()
            graph = builder.complete()
            builder.close()
            return _Graph(graph, self._stream)

    def connect(self, group: RankGroup) -> DeviceRanks:
        """By NCCL."""
        with _errors("the GPUs of the ranks cannot be connected"):
            self._gpu_of_thread()
            return NcclRanks(group, int(self._stream.handle), _address)

    def close(self) -> None:
        """Forgets the kernels."""
        self._kernels.clear()


def count_gpus() -> int:
    """The GPUs that CUDA sees. Raises BackendError."""
    with _errors("GPUs cannot be counted"):
        from cuda.bindings import driver

        [started] = driver.cuInit(0)
        found, count = driver.cuDeviceGetCount()
        if {started, found} != {driver.CUresult.CUDA_SUCCESS}:
            raise BackendError(f"GPUs cannot be counted: {started}, {found}")
        return int(count)


class _Graph(Recording):
    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph, self._stream = graph, stream

    def replay(self) -> None:
        with _errors("recorded launches cannot be done again"):
            self._graph.launch(self._stream)

    def close(self) -> None:
        self._stream.sync()  # it may be under way
        self._graph.close()


class _Copies:
    """Copies on one stream through two pinned pieces of host memory, which are used in turn."""

    def __init__(self, core: Any, stream: Any) -> None:
        self._core, self._stream, self._lock = core, stream, Lock()
        self._pieces = [_Pinned(core) for _ in range(2)]
        self._turn = 0

    def to_device(self, address: int, data: NDArray[np.uint8]) -> None:
        """Returns when the data was copied to pinned memory."""
        with self._lock:
            for begin in range(0, data.size, _STAGING_BYTES):
                part = data[begin : begin + _STAGING_BYTES]
                piece = self._next(part.size)
                piece.array[: part.size] = part
                device = self._core.Buffer.from_handle(address + begin, part.size)
                device.copy_from(piece.first(part.size), stream=self._stream)
                piece.event = self._stream.record()

    def to_host(self, address: int, out: NDArray[np.uint8]) -> None:
        """Returns when `out` is full."""
        with self._lock:
            for begin in range(0, out.size, _STAGING_BYTES):
                part = out[begin : begin + _STAGING_BYTES]
                piece = self._next(part.size)
                device = self._core.Buffer.from_handle(address + begin, part.size)
                device.copy_to(piece.first(part.size), stream=self._stream)
                self._stream.sync()
                part[:] = piece.array[: part.size]

    def wait(self) -> None:
        """Until all copies are done."""
        self._stream.sync()

    def allocate(self, gpu: Any, num_bytes: int) -> Any:
        """Memory of zeros, which all streams may use."""
        held = gpu.allocate(num_bytes, stream=self._stream)
        held.fill(0, stream=self._stream)
        self._stream.sync()
        return held

    def _next(self, num_bytes: int) -> _Pinned:
        self._turn ^= 1
        piece = self._pieces[self._turn]
        if piece.event is not None:
            piece.event.sync()
            piece.event = None
        piece.grow(num_bytes)
        return piece


class _Downloads:
    """Copies to pieces of pinned memory, which are used again after `wait`. One thread."""

    def __init__(self, core: Any, stream: Any) -> None:
        self._core, self._stream = core, stream
        self._free: dict[int, list[_Pinned]] = {}

    def send(self, address: int, num_bytes: int) -> Download:
        """Begins a copy."""
        size = _pinned_bytes(num_bytes)
        free = self._free.setdefault(size, [])
        piece = free.pop() if free else _Pinned(self._core)
        piece.grow(size)
        device = self._core.Buffer.from_handle(address, num_bytes)
        device.copy_to(piece.first(num_bytes), stream=self._stream)
        piece.event = self._stream.record()
        return _Sent(piece, num_bytes, free)


class _Sent(Download):
    def __init__(self, piece: _Pinned, num_bytes: int, free: list[_Pinned]) -> None:
        self._piece, self._num_bytes, self._free = piece, num_bytes, free

    def wait(self) -> NDArray[np.uint8]:
        with _errors("the GPU has not computed the step"):
            self._piece.event.sync()
        found: NDArray[np.uint8] = self._piece.array[: self._num_bytes].copy()
        self._free.append(self._piece)
        return found


def _pinned_bytes(num_bytes: int) -> int:
    """The size of a piece: a power of two."""
    return 1 << max(16, (num_bytes - 1).bit_length())


class _Pinned:
    """Host memory that the GPU can reach, and the event after which it is free again."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.event: Any = None
        self.array = np.empty(0, np.uint8)
        self._held: Any = None

    def grow(self, num_bytes: int) -> None:
        """To at least so many bytes, and to a power of two."""
        if num_bytes <= self.array.size:
            return
        size = _pinned_bytes(num_bytes)
        self._held = self._core.LegacyPinnedMemoryResource().allocate(size)
        memory = (ctypes.c_uint8 * size).from_address(int(self._held.handle))
        self.array = np.ctypeslib.as_array(memory)

    def first(self, num_bytes: int) -> Any:
        """Its first bytes, as the driver's copies need them."""
        return self._core.Buffer.from_handle(int(self._held.handle), num_bytes, owner=self._held)


def _arguments(launch: Launch) -> Iterator[Any]:
    """Addresses are Python's integers, which `cuda-core` passes as pointers; numbers have NumPy's
    types, so that it knows their sizes."""
    for name, kind in launch.kernel.types:
        value = launch.args[name]
        if isinstance(value, Buffer):
            yield _address(value)
        else:
            yield ARRAY_TYPES[kind](value)


def _address(buffer: Buffer) -> int:
    if buffer.memory.handle is None:
        raise BackendError("the device does not hold this memory")
    return int(buffer.memory.handle.handle) + buffer.begin


def _raw(data: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The bytes of an array whose numbers follow each other."""
    if not data.flags.c_contiguous:
        raise BackendError("an array that is copied must be contiguous")
    return data.reshape(-1).view(np.uint8)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Errors of the driver and of its package become BackendErrors."""
    try:
        yield
    except BackendError:
        raise
    except ModuleNotFoundError as error:
        raise BackendError(
            f"{what}: {error}; install quire-engine[cuda], and NVIDIA's driver"
        ) from error
    except Exception as error:  # cuda-core raises its own kinds of errors, and RuntimeError
        raise BackendError(f"{what}: {error}") from error

"""`CudaDevice`: the contract of a GPU with NVIDIA's driver, by way of its Python packages.

The only file that imports `cuda`. Streams, kernels, launches and graphs are those of `cuda-core`;
memory and copies are functions of the driver itself (`cuda-bindings`), so that memory that is given
back is free for other programs at once. Kernels come from `compiled.py`. Launches, uploads and
downloads are done on one stream; `read` and `write`, which any thread may call, have another one.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.compiled import find_cubin
from quire.backends.cuda.device import Device, DeviceFacts, Download, Recording, raw_bytes
from quire.backends.cuda.kernel import ARRAY_TYPES, DeviceRanks, Kernel, Launch
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.cuda.nccl import NcclRanks
from quire.errors import BackendError, DeviceError
from quire.ranks import RankGroup

_STAGING_BYTES = 32 << 20
_NUM_UPLOADS = 8
"""Uploads that may be under way: those of two steps, so that the second one does not wait."""
_STATIC_SHARED_BYTES = 48 << 10
"""A kernel that needs more shared memory must ask for it before it is launched."""
_NULL = 0
_LAST_ERRORS = re.compile(
    "CUDA_ERROR_(ILLEGAL_(ADDRESS|INSTRUCTION)|LAUNCH_(FAILED|TIMEOUT)|MISALIGNED_ADDRESS"
    "|INVALID_(ADDRESS_SPACE|PC)|ECC_|NVLINK_|CONTAINED|ASSERT|HARDWARE_|CONTEXT_IS_DESTROYED"
    "|TENSOR_MEMORY|EXTERNAL_DEVICE|UNKNOWN)"
)
"""Errors after which the driver refuses all further work of the process on this GPU. Source:
NVIDIA, "CUDA Driver API", section "Data types", `CUresult`."""
_CHOSEN = local()
"""`index`: the GPU that `CudaDevice` has chosen last for this thread."""


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
            self._gpu_of_thread()
            self._stream = self._gpu.create_stream()
            self._copies = _Copies(self._gpu.create_stream(), 2)
            self._uploads = _Copies(self._stream, _NUM_UPLOADS)
            self._downloads = _Downloads(self._stream)
            own = self._gpu.properties
            major, minor = own.compute_capability_major, own.compute_capability_minor
            self._architecture = 10 * major + minor
        self._kernels: dict[Kernel, tuple[Any, Any]] = {}
        self.is_lost = False
        """Whether it has failed: then the end of the process gives everything back."""
        self._target = self._stream

    @property
    def facts(self) -> DeviceFacts:
        with self._doing("the GPU does not answer"):
            own = self._gpu.properties
            free, total = _called("cuMemGetInfo")
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
        with self._doing(f"the GPU has no {memory.num_bytes} bytes left"):
            memory.handle = self._copies.allocate(max(1, memory.num_bytes))

    def _free(self, memory: Memory) -> None:
        """After everything that was launched: the driver waits for it."""
        if memory.handle is not None:
            address, memory.handle = memory.handle, None
            if self.is_lost:
                return
            with self._doing("memory of the GPU cannot be given back"):
                self._stream.sync()
                _called("cuMemFree", address)

    def launch(self, launch: Launch) -> None:
        """Loads the kernel, if it is the first time."""
        if 0 in launch.grid:
            return
        with self._doing(f"the kernel {launch.kernel} cannot be launched"):
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
        [device] = _called("cuDeviceGet", self._index)
        _called("cuKernelSetAttribute", attribute, num_bytes, function.handle, device)

    def upload(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """By way of pinned memory, so that the copy is done while the host goes on."""
        with self._doing("the GPU takes no data"):
            self._uploads.to_device(_address(target), raw_bytes(data))

    def download(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """By way of pinned memory."""
        with self._doing("the GPU gives no data"):
            self._uploads.to_host(_address(source), raw_bytes(out))

    def send(self, source: Buffer) -> Download:
        """To pinned memory, and an event after it."""
        with self._doing("the GPU gives no data"):
            return _Sent(self, *self._downloads.send(_address(source), source.num_bytes))

    def copy(self, source: Buffer, target: Buffer) -> None:
        with self._doing("the GPU copies no data"):
            _copy(_address(target), _address(source), target.num_bytes, self._stream)

    def read(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """On a stream of its own."""
        with self._doing("the GPU gives no data"):
            self._copies.follow(self._launched())
            self._copies.to_host(_address(source), raw_bytes(out))

    def write(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """On a stream of its own."""
        with self._doing("the GPU takes no data"):
            self._copies.follow(self._launched())
            self._copies.to_device(_address(target), raw_bytes(data))
            self._copies.wait()

    def _launched(self) -> Any:
        """An event after all that was launched. Not while launches are recorded, where it would
        become a part of the recording."""
        with self._lock:
            return self._stream.record()

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """The thread has this GPU meanwhile, and errors say what failed."""
        try:
            with _errors(what):
                self._gpu_of_thread()
                yield
        except BackendError as error:
            if not _LAST_ERRORS.search(str(error)):
                raise
            self.is_lost = True
            raise DeviceError(f"{error}; the engine must be started again") from error

    def _gpu_of_thread(self) -> None:
        """Each thread has to choose the GPU once, and again after another one."""
        if getattr(_CHOSEN, "index", None) != self._index:
            self._core.Device(self._index).set_current()
            _CHOSEN.index = self._index

    def _record(self, work: Callable[[], None]) -> Recording:
        """A CUDA graph. If `work` fails, the stream is usable again."""
        with self._doing("the launches cannot be recorded"):
            builder = self._stream.create_graph_builder()
            builder.begin_building("thread_local")
            self._target = builder
            try:
                work()
            except BaseException:
                with suppress(Exception):  # the driver says again that the recording has failed
                    builder.close()
                raise
            finally:
                self._target = self._stream
            builder.end_building()
            graph = builder.complete()
            builder.close()
            return _Graph(self, graph, self._stream)

    def connect(self, group: RankGroup) -> DeviceRanks:
        """By NCCL."""
        with self._doing("the GPUs of the ranks cannot be connected"):
            stream, kind = int(self._stream.handle), self.facts.architecture
            return NcclRanks(group, stream, _address, kind)

    def close(self) -> None:
        self._kernels.clear()


def count_gpus() -> int:
    """The GPUs that CUDA sees. Raises BackendError."""
    with _errors("GPUs cannot be counted"):
        _called("cuInit", 0)
        [count] = _called("cuDeviceGetCount")
        return int(count)


class _Graph(Recording):
    def __init__(self, device: CudaDevice, graph: Any, stream: Any) -> None:
        self._device, self._graph, self._stream = device, graph, stream

    def replay(self) -> None:
        with self._device._doing("recorded launches cannot be done again"):
            self._graph.launch(self._stream)

    def close(self) -> None:
        if self._device.is_lost:
            return
        with self._device._doing("recorded launches cannot be forgotten"):
            self._stream.sync()  # it may be under way
            self._graph.close()


class _Copies:
    """Copies on one stream through pinned pieces of host memory, which are used in turn."""

    def __init__(self, stream: Any, num_pieces: int) -> None:
        self._stream, self._lock = stream, Lock()
        self._pieces = [_Pinned() for _ in range(num_pieces)]
        self._turn = 0

    def to_device(self, address: int, data: NDArray[np.uint8]) -> None:
        """Returns when the data was copied to pinned memory."""
        with self._lock:
            for begin in range(0, data.size, _STAGING_BYTES):
                part = data[begin : begin + _STAGING_BYTES]
                piece = self._next(part.size)
                piece.array[: part.size] = part
                _copy(address + begin, piece.address, part.size, self._stream)
                piece.event = self._stream.record()

    def to_host(self, address: int, out: NDArray[np.uint8]) -> None:
        """Returns when `out` is full."""
        with self._lock:
            for begin in range(0, out.size, _STAGING_BYTES):
                part = out[begin : begin + _STAGING_BYTES]
                piece = self._next(part.size)
                _copy(piece.address, address + begin, part.size, self._stream)
                self._stream.sync()
                part[:] = piece.array[: part.size]

    def follow(self, event: Any) -> None:
        """Later copies are done after an event of another stream."""
        self._stream.wait(event)

    def wait(self) -> None:
        """Until all copies are done."""
        self._stream.sync()

    def allocate(self, num_bytes: int) -> int:
        """The address of memory of zeros, which all streams may use."""
        [found] = _called("cuMemAlloc", num_bytes)
        _called("cuMemsetD8Async", found, 0, num_bytes, self._stream.handle)
        self._stream.sync()
        return int(found)

    def _next(self, num_bytes: int) -> _Pinned:
        self._turn = (self._turn + 1) % len(self._pieces)
        piece = self._pieces[self._turn]
        if piece.event is not None:
            piece.event.sync()
            piece.event = None
        piece.grow(num_bytes)
        return piece


class _Downloads:
    """Copies to pieces of pinned memory, which are used again after `wait`. One thread."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._free: dict[int, list[_Pinned]] = {}

    def send(self, address: int, num_bytes: int) -> tuple[_Pinned, int, list[_Pinned]]:
        """Begins a copy: the piece, the bytes in it, and where it belongs afterwards."""
        size = _pinned_bytes(num_bytes)
        free = self._free.setdefault(size, [])
        piece = free.pop() if free else _Pinned()
        piece.grow(size)
        _copy(piece.address, address, num_bytes, self._stream)
        piece.event = self._stream.record()
        return piece, num_bytes, free


class _Sent(Download):
    def __init__(
        self, device: CudaDevice, piece: _Pinned, num_bytes: int, free: list[_Pinned]
    ) -> None:
        self._device, self._piece, self._num_bytes, self._free = device, piece, num_bytes, free

    def wait(self) -> NDArray[np.uint8]:
        with self._device._doing("the GPU has not computed the step"):
            self._piece.event.sync()
        found: NDArray[np.uint8] = self._piece.array[: self._num_bytes].copy()
        self._free.append(self._piece)
        return found


def _pinned_bytes(num_bytes: int) -> int:
    """The size of a piece: a power of two."""
    return 1 << max(16, (num_bytes - 1).bit_length())


class _Pinned:
    """Host memory that the GPU can reach, and the event after which it is free again."""

    def __init__(self) -> None:
        self.event: Any = None
        self.array = np.empty(0, np.uint8)
        self.address = 0

    def grow(self, num_bytes: int) -> None:
        """To at least so many bytes, and to a power of two. No copy may be under way."""
        if num_bytes <= self.array.size:
            return
        size = _pinned_bytes(num_bytes)
        if self.address:
            self.array = np.empty(0, np.uint8)
            _called("cuMemFreeHost", self.address)
            self.address = 0
        [found] = _called("cuMemAllocHost", size)
        self.address = int(found)
        memory = (ctypes.c_uint8 * size).from_address(self.address)
        self.array = np.ctypeslib.as_array(memory)


def _copy(target: int, source: int, num_bytes: int, stream: Any) -> None:
    """Begins a copy between the GPU's memory, or pinned memory, and the GPU's memory."""
    _called("cuMemcpyAsync", target, source, num_bytes, stream.handle)


def _called(name: str, *args: Any) -> tuple[Any, ...]:
    """The results of a function of the driver. Raises BackendError."""
    from cuda.bindings import driver

    error, *found = getattr(driver, name)(*args)
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise BackendError(f"{name}: {error.name} ({(text or b'').decode(errors='replace')})")
    return tuple(found)


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
    return int(buffer.memory.handle) + buffer.begin


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Errors of the driver and of its package become BackendErrors."""
    try:
        yield
    except BackendError as error:
        raise BackendError(f"{what}: {error}") from error
    except ModuleNotFoundError as error:
        raise BackendError(
            f"{what}: {error}; install quire-engine[cuda], and NVIDIA's driver"
        ) from error
    except Exception as error:  # cuda-core raises its own kinds of errors, and RuntimeError
        raise BackendError(f"{what}: {error}") from error

"""`CudaDevice` and NVIDIA's package `cuda-core` with a driver that computes with NumPy.

For processes of their own: `cuda-core` keeps the driver that it has found first. `install` loads
`cuda_driver.cpp`, compiled, in the driver's place. Kernels are named in its "machine code", and a
launch calls the kernel's twin with the bytes of the arguments, as the driver has got them.
"""

from __future__ import annotations

import ctypes
import subprocess
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from quire.backends.cuda import driver
from quire.backends.cuda.cubin import Cubin, CubinFacts
from quire.backends.cuda.driver import CudaDevice, _arguments
from quire.backends.cuda.kernel import ARRAY_TYPES, Kernel, Launch

_LAUNCHER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint32),
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_int,
)  # fmt: skip


def compiled(folder: Path) -> Path | None:
    """The library; None: there is no compiler, or no cuda.h, which Triton brings."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    headers = Path(spec.origin).parent / "backends" / "nvidia" / "include"
    library = folder / "libcuda.so.1"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-I", str(headers)]
    command += [f"-Wl,-soname,{library.name}", str(Path(__file__).with_suffix(".cpp"))]
    try:
        subprocess.run([*command, "-o", str(library), "-ldl"], check=True)
    except FileNotFoundError:
        return None
    return library


class FakeDriver:
    """The driver in this process."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self.library.fake_count.restype = ctypes.c_long
        self.library.fake_pieces.restype = ctypes.c_long
        self.library.fake_total.argtypes = [ctypes.c_size_t]
        self.library.fake_rest.argtypes = [ctypes.c_uint64]
        self.library.fake_rest.restype = ctypes.c_size_t
        self._kernels: dict[str, Kernel] = {}
        self._sizes: dict[Kernel, int] = {}
        """How many sizes a kernel's grid has: the driver always gets three."""
        self._called = _LAUNCHER(self._launched)
        self.library.fake_launcher(self._called)
        self.failing: set[str] = set()
        """Kernels that fail when they are computed, by name."""

    def count(self, name: str) -> int:
        """How often a function was called."""
        return int(self.library.fake_count(name.encode()))

    def fail(self, name: str, error: int) -> None:
        """The next call of a function fails."""
        self.library.fake_fail(name.encode(), error)

    def cubin(self, kernel: Kernel, architecture: int) -> Cubin:
        """In place of `find_cubin`."""
        assert architecture == 90
        symbol = f"kernel{len(self._kernels)}"
        self._kernels[symbol] = kernel
        text = " ".join(["CUBIN", symbol, *map(str, kernel.parameter_sizes)])
        return Cubin(text.encode() + b"\0", CubinFacts(symbol, kernel.num_warps, 50 << 10, 0, 0))

    def arguments(self, launch: Launch) -> Iterator[Any]:
        """In place of `_arguments`."""
        self._sizes[launch.kernel] = len(launch.grid)
        return _arguments(launch)

    def _launched(self, symbol: bytes, grid: Any, params: Any, count: int) -> int:
        try:
            self._compute(self._kernels[symbol.decode()], tuple(grid[:3]), params, count)
        except Exception:
            traceback.print_exc()
            return 1
        return 0

    def _compute(self, kernel: Kernel, grid: tuple[int, ...], params: Any, count: int) -> None:
        if kernel.name in self.failing:
            raise RuntimeError(f"{kernel.name} fails")
        args: dict[str, Any] = {}
        for index, (name, kind) in enumerate(kernel.types):
            number = ARRAY_TYPES[kind.removeprefix("*")]
            if kind.startswith("*"):
                args[name] = self._array(_uint64(params[index]), number)
            else:
                args[name] = np.frombuffer(_memory(params[index], number().nbytes), number)[0]
        scratch = [_uint64(params[index]) for index in range(len(kernel.types), count)]
        assert scratch == [0, 0], "scratch memory"
        twin = getattr(import_module(f"quire.backends.cuda.twins.{kernel.module}"), kernel.name)
        with np.errstate(all="ignore"):
            twin(grid[: self._sizes[kernel]], **args, **dict(kernel.constants))

    def _array(self, address: int, number: type[np.generic]) -> Any:
        rest = int(self.library.fake_rest(address))
        if not rest:
            raise RuntimeError("an address that is not allocated")
        item = number().nbytes
        return np.frombuffer(_memory(address, rest // item * item), number)


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


def _uint64(address: int) -> int:
    return int(ctypes.c_uint64.from_address(address).value)


def install(library: str) -> FakeDriver:
    """Loads the library in the driver's place, and finds kernels without compiling them."""
    found = FakeDriver(library)
    driver.find_cubin = found.cubin
    driver._arguments = found.arguments
    return found


def device(index: int = 0) -> CudaDevice:
    """A GPU of it."""
    return CudaDevice(index)

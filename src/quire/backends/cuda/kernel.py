"""`Kernel`: the name of a compiled function of the GPU, and `Launch`: one call of it.

Lowering names kernels by these records. It does not import Triton.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.memory import Buffer
from quire.config.records import Dtype

if TYPE_CHECKING:
    from quire.backends.records import StepBatch

Arguments = dict[str, Buffer | int | float]
"""Arguments of a launch by name: addresses, whole numbers and numbers of float32."""

TYPE_NAMES: Mapping[Dtype, str] = {"float32": "fp32", "bfloat16": "bf16"}
"""Triton's names of the model's dtypes."""

CACHE_TYPES: Mapping[str, str] = {
    "float32": "fp32", "bfloat16": "bf16", "int8": "i8", "fp8": "f8"
}  # fmt: skip
"""The types of the KV cache: Triton's names, and `f8` for 8-bit floats, which kernels read as
signed bytes."""

ITEM_BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "i8": 1, "f8": 1}
"""Bytes of a number."""


def cache_types(cache: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Triton's type of a cache's numbers, and the constants of kernels that say what they are."""
    is_float, is_scaled = cache == "f8", cache in ("i8", "f8")
    constants = (("SCALED", int(is_scaled)), ("FLOATS", int(is_float)))
    return "i8" if is_float else cache, constants


ARRAY_TYPES: Mapping[str, type[np.generic]] = {
    "fp32": np.float32, "bf16": np.uint16, "i32": np.int32, "i64": np.int64,
    "i8": np.int8, "u8": np.uint8, "fp64": np.float64,
}  # fmt: skip
"""NumPy's types for Triton's names. The host holds bfloat16 as its bits."""


_WIDTHS = ("K", "width", "head_dim", "value_dim")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of `kernels/MODULE.py`, compiled for some types and constants."""

    module: str
    name: str
    types: tuple[tuple[str, str], ...]
    """The arguments at run time, in order, with Triton's names of their types: `*bf16` is a pointer
    to bfloat16 numbers."""
    constants: tuple[tuple[str, int], ...] = ()
    """The arguments at compile time."""
    is_aligned: bool = False
    """Whether all pointers, strides and widths are multiples of 16 (bytes or numbers). The compiled
    code then reads 16 bytes at once."""
    num_warps: int = 4
    num_stages: int = 2

    @property
    def parameter_sizes(self) -> list[int]:
        """Bytes of each argument at run time, and of the two pointers to scratch memory that Triton
        adds."""
        own = [8 if kind[0] == "*" else ARRAY_TYPES[kind]().nbytes for _, kind in self.types]
        return [*own, 8, 8]

    def aligned(self) -> Kernel:
        """The same kernel for aligned arguments."""
        return replace(self, is_aligned=True)

    @property
    def aligned_names(self) -> tuple[str, ...]:
        """The arguments that are multiples of 16 if `is_aligned`."""
        return tuple(
            name
            for name, kind in self.types
            if kind.startswith("*") or name in _WIDTHS or name.startswith("stride")
        )

    def fits(self, args: Arguments) -> bool:
        """Whether the kernel may have these arguments: if it is aligned, all of them are."""
        values = (args[name] for name in self.aligned_names if self.is_aligned)
        starts = (value if isinstance(value, int | float) else value.begin for value in values)
        return all(start % 16 == 0 for start in starts)

    def fitted(self, args: Arguments) -> Kernel:
        """The kernel for aligned arguments if these are, otherwise this one."""
        return self.aligned() if self.aligned().fits(args) else self

    def __str__(self) -> str:
        types = ",".join(kind for _, kind in self.types if kind.startswith("*"))
        constants = ",".join(f"{name}={value}" for name, value in self.constants)
        aligned = " aligned" if self.is_aligned else ""
        return f"{self.module}.{self.name}({types} {constants}{aligned})"


def both(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """Each kernel, and the same for aligned arguments."""
    for kernel in kernels:
        yield kernel
        yield kernel.aligned()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its arguments, and how many programs of it run: `grid` has one to three
    sizes."""

    kernel: Kernel
    grid: tuple[int, ...]
    args: Arguments


@dataclass(frozen=True, slots=True)
class Upload:
    """A copy of numbers of the host to the device."""

    target: Buffer
    data: NDArray[np.generic]


class DeviceRanks(ABC):
    """The contract of the other ranks of a model, as a step on a device sees them. `emulated.py`
    implements it with the connections of `quire.ranks`, `nccl.py` with NVIDIA's library NCCL.
    Numbers are copied and never added, so neither has an influence on bits.

    The methods are called in the same order on all ranks, by the thread that launches."""

    def begin(self, batch: StepBatch) -> None:
        """A step begins."""
        del batch

    @abstractmethod
    def gather(self, own: Buffer, parts: Buffer) -> None:
        """Fills `parts` with the bytes of `own` of all ranks, in the order of ranks. This rank's
        are in their place already. Done in order with launches and copies, and recorded with
        launches."""

    def count(self, own: Buffer, parts: Buffer) -> None:
        """A recorded exchange was done again without a call of `gather`."""
        del own, parts

    @abstractmethod
    def close(self) -> None:
        """Gives everything back. Idempotent."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call of `gather`, as one thing that a step does."""

    ranks: DeviceRanks
    own: Buffer
    parts: Buffer


Action = Launch | Upload | Exchange
"""One thing that a step does on the device, in order."""

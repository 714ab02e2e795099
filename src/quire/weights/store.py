"""`WeightStore`: the interface from which a backend reads tensors (`HostTensor`) by name.

Readers (safetensors, PyTorch .bin, ...) implement it; backends and `binding` consume it.
Tensor names are those that a model family's `Param.parts` use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program.values import GroupedFormat
from quire.weights.quantised.groups import Groups

if TYPE_CHECKING:
    from quire.gguf.block_types import BlockType

TensorDtype = Literal["F32", "BF16", "F16", "GROUPED", "BLOCKS"]
"""GROUPED: codes in groups, see `weights.quantised.groups`. BLOCKS: blocks of a GGUF type."""

ITEM_BYTES: dict[str, int] = {"F32": 4, "BF16": 2, "F16": 2}


def as_tensor_dtype(dtype: str, what: str) -> TensorDtype:
    """Return `dtype` if a backend can read it. Otherwise raises CheckpointError, naming `what`."""
    if dtype in ITEM_BYTES:
        return cast(TensorDtype, dtype)
    raise CheckpointError(f"{what} is of type {dtype}; only F32, BF16 and F16 can be used")


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A read-only tensor in host memory, usually a slice of a memory-mapped file.

    `data` holds `prod(shape) * ITEM_BYTES[dtype]` bytes in C order, or codes or blocks. Its address
    may have any alignment that the file format allows.
    """

    name: str
    dtype: TensorDtype
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    file: str
    """The file that holds the tensor, for messages."""
    is_mapped: bool = False
    """Whether `data` is a view of a read-only file mapping: dropped pages are then read again on
    access."""
    format: GroupedFormat | None = None
    """Format of a tensor of dtype GROUPED or BLOCKS."""
    block_type: BlockType | None = None
    """GGUF type of a tensor of dtype BLOCKS."""

    def to_float32(self) -> NDArray[np.float32]:
        """Return a float32 copy in the tensor's shape; a view if the tensor is float32 already."""
        if self.block_type is not None:
            raise CheckpointError(f"{self.file}: tensor {self.name!r} must not be held in blocks")
        if self.format is not None:
            return Groups.from_bytes(self.data, self.shape, self.format).to_float32()
        if self.dtype == "F32":
            flat = self.data.view(np.float32)
        elif self.dtype == "F16":
            flat = self.data.view(np.float16).astype(np.float32)
        else:
            flat = (self.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(self.shape)


class WeightStore(ABC):
    """The tensors of one checkpoint. Safe to read from several threads."""

    @property
    def source(self) -> str:
        """The file or files, for messages."""
        return "the checkpoint"

    @property
    def is_made_up(self) -> bool:
        """Whether the weights are random, so that matrices of one shape may share their values."""
        return False

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Every tensor name in the checkpoint."""

    @abstractmethod
    def get(self, name: str) -> HostTensor:
        """Return a tensor. Raises CheckpointError if it is missing or damaged."""

    def stored(self, name: str) -> HostTensor:
        """Return a tensor in the form that the native library accepts, which may be BLOCKS. Raises
        CheckpointError as `get` does."""
        return self.get(name)

    def describe(self, name: str) -> HostTensor:
        """Return a tensor, perhaps without its data. Raises CheckpointError as `get` does."""
        return self.get(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor of any type. Raises CheckpointError if the tensor is missing."""
        return self.describe(name).shape

    def integers(self, name: str) -> NDArray[np.generic]:
        """Return a tensor of whole numbers, such as the codes of a quantised checkpoint.

        Raises CheckpointError if it is missing or does not hold whole numbers.
        """
        raise CheckpointError(f"{self.source}: {name!r} cannot be read as whole numbers")

    def release(self, name: str) -> None:  # noqa: B027 (a hint: doing nothing is right too)
        """Drops this tensor's pages from the resident set; the next access reads them again."""

    def prefetch(self) -> None:  # noqa: B027
        """Asks the kernel to read every tensor in the background. Returns at once."""

    def check(self) -> None:  # noqa: B027 (tensors in memory cannot change)
        """Raises CheckpointError if a file changed since it was opened, or could not be read.

        Call it after each use of the tensors: results are valid only if it does not raise.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases the files. HostTensors returned before become invalid."""


class WrappedStore(WeightStore):
    """The tensors of another store in another form. Closing it closes the other one."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store

    def prefetch(self) -> None:
        self._store.prefetch()

    def check(self) -> None:
        self._store.check()

    def close(self) -> None:
        self._store.close()

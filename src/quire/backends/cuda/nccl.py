"""`NcclRanks`: ranks that exchange the memory of their GPUs with NVIDIA's library NCCL.

The library is loaded when ranks are connected: that of the package `nvidia-nccl-cu13`, or the one
of the system. Only one of its operations is used, which copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from quire.backends.cuda.kernel import DeviceRanks
from quire.backends.cuda.memory import Buffer
from quire.errors import BackendError
from quire.ranks import RankGroup

_ID_BYTES = 128
_BYTES = 1
"""NCCL's number of the type of 8-bit numbers."""
_NAME = "libnccl.so.2"


class _UniqueId(ctypes.Structure):
    _fields_ = [("data", ctypes.c_byte * _ID_BYTES)]


_Handle = ctypes.c_void_p
_ARGUMENTS = {
    "ncclGetUniqueId": [ctypes.POINTER(_UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(_Handle), ctypes.c_int, _UniqueId, ctypes.c_int],
    "ncclAllGather": [_Handle, _Handle, ctypes.c_size_t, ctypes.c_int, _Handle, _Handle],
    "ncclCommDestroy": [_Handle],
}


class NcclRanks(DeviceRanks):
    """Exchanges are done on the stream of launches, and the host waits for none of them."""

    def __init__(
        self,
        group: RankGroup,
        stream: int,
        address: Callable[[Buffer], int],
        architecture: int,
    ) -> None:
        """The thread's GPU is chosen already, and has this compute capability. `stream`: the handle
        of the stream. Waits for the other ranks. Raises BackendError, also if their GPUs are not of
        one kind: they would compute other bits."""
        self._group, self._stream, self._address = group, stream, address
        self._library = load_library()
        self._handle = _Handle()
        own = _UniqueId()
        if group.rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(own))
        said = self._exchanged(bytes(own) + architecture.to_bytes(4, "little"))
        kinds = [int.from_bytes(one[_ID_BYTES:], "little") for one in said]
        if len(set(kinds)) > 1:
            raise BackendError(
                "the GPUs of all ranks must have the same compute capability, and they have "
                f"{', '.join(f'{kind / 10:.1f}' for kind in kinds)}; name equal ones with "
                "CUDA_VISIBLE_DEVICES"
            )
        of_all = _UniqueId.from_buffer_copy(said[0])
        place = ctypes.byref(self._handle)
        self._call("ncclCommInitRank", place, group.num_ranks, of_all, group.rank)

    def _exchanged(self, own: bytes) -> list[bytes]:
        """The bytes of each rank, which all have the same number."""
        size, count = len(own), self._group.num_ranks
        spans = [(rank * size, size) for rank in range(count)]
        row = np.frombuffer(own * count, np.uint8).reshape(1, -1).copy()
        self._group.columns(row, spans)
        return [part.tobytes() for part in row.reshape(count, size)]

    def gather(self, own: Buffer, parts: Buffer) -> None:
        """In place: `own` is a part of `parts`."""
        source, target = self._address(own), self._address(parts)
        size = own.num_bytes
        self._call("ncclAllGather", source, target, size, _BYTES, self._handle, self._stream)
        self.count(own, parts)

    def count(self, own: Buffer, parts: Buffer) -> None:
        """Bytes that this rank receives."""
        self._group.num_bytes += parts.num_bytes - own.num_bytes

    def close(self) -> None:
        """After the last exchange."""
        if self._handle:
            self._call("ncclCommDestroy", self._handle)
            self._handle = _Handle()

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            text = self._library.ncclGetErrorString(status).decode(errors="replace")
            raise BackendError(f"GPUs cannot exchange values: {name}: {text}")


def load_library() -> ctypes.CDLL:
    """NCCL. Raises BackendError if it is not installed, or lacks a function."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
    places = [str(Path(folder, "lib", _NAME)) for folder in folders]
    found = [place for place in places if Path(place).is_file()]
    try:
        library = ctypes.CDLL((found or [_NAME])[0])
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
        library.ncclGetErrorString.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise BackendError(
            f"several GPUs need NVIDIA's NCCL ({error}); install quire-engine[cuda-ranks]"
        ) from error
    return library

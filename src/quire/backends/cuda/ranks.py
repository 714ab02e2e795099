"""`DeviceRanks`: the contract of the other ranks of a model, as a step on a device sees them.

`HostRanks` implements it with the connections of `quire.ranks`, `nccl.py` with NVIDIA's library
NCCL. Numbers are copied and never added, so the library has no influence on bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.memory import Buffer
from quire.ranks import RankGroup

if TYPE_CHECKING:
    from quire.backends.cuda.device import Device


class DeviceRanks(ABC):
    """The methods are called in the same order on all ranks, by the thread that launches."""

    def begin(self, batch: StepBatch) -> None:
        """A step begins."""
        del batch

    @abstractmethod
    def gather(self, own: Buffer, parts: Buffer) -> None:
        """Fills `parts` with the bytes of `own` of all ranks, in the order of ranks. This rank's
        are in their place already. Done in order with launches and copies."""

    def close(self) -> None:
        """Gives everything back. Idempotent."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call of `gather`, as one thing that a step does."""

    ranks: DeviceRanks
    own: Buffer
    parts: Buffer


class HostRanks(DeviceRanks):
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

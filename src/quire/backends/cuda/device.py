"""`Device`: the contract between the backend and a GPU.

`driver.py` implements it with NVIDIA's driver, `emulated.py` with NumPy. Launches and copies are
done in the order in which they are given. Nothing waits for the device but `download`, `read`,
`write` and `Download.wait`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.kernel import Action, Launch
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.cuda.ranks import DeviceRanks, Exchange
from quire.ranks import RankGroup


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of a GPU."""

    name: str
    architecture: int
    """The compute capability as one number: 90 for 9.0."""
    total_bytes: int
    free_bytes: int
    num_processors: int
    """Streaming multiprocessors."""
    bytes_per_second: float
    """Peak bandwidth of its memory; 0 if it is not known."""
    is_emulated: bool = False


class Device(ABC):
    """A GPU. One caller at a time, but for `hold`, `release`, `read` and `write`."""

    @property
    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Its properties."""

    @abstractmethod
    def hold(self, memory: Memory) -> None:
        """Takes memory of this size, filled with zeros; nothing if it is held already. Raises
        BackendError if there is not enough."""

    @abstractmethod
    def release(self, memory: Memory) -> None:
        """Gives the memory back, once everything before it is done. Nothing if it is not held."""

    @abstractmethod
    def launch(self, launch: Launch) -> None:
        """Runs a kernel."""

    @abstractmethod
    def upload(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """Copies an array to the beginning of a buffer. The caller may change it afterwards."""

    @abstractmethod
    def download(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """Fills an array from the beginning of a buffer, and waits until it is full."""

    @abstractmethod
    def send(self, source: Buffer) -> Download:
        """Begins to copy a buffer to the host, and does not wait. Later launches may change the
        buffer."""

    @abstractmethod
    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copies a buffer to another one of the same size."""

    @abstractmethod
    def read(self, source: Buffer, out: NDArray[np.generic]) -> None:
        """The same as `download`, by any thread, without waiting for launches that are under way.
        What wrote these bytes must be done."""

    @abstractmethod
    def write(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """The same as `upload`, by any thread, and waits until it is done. No launch under way may
        use these bytes."""

    @abstractmethod
    def record(self, work: Callable[[], None]) -> Recording:
        """Runs `work`, whose launches are not done but recorded. It may not copy."""

    @abstractmethod
    def connect(self, group: RankGroup) -> DeviceRanks:
        """The same ranks, which exchange memory of their devices. Called by all ranks at once.
        Raises BackendError if they cannot."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back; calling it twice is harmless."""

    def run(self, action: Action) -> None:
        """Does one thing of a step."""
        if isinstance(action, Launch):
            self.launch(action)
        elif isinstance(action, Exchange):
            action.ranks.gather(action.own, action.parts)
        else:
            self.upload(action.target, action.data)


class Download(ABC):
    """Bytes on their way to the host."""

    @abstractmethod
    def wait(self) -> NDArray[np.uint8]:
        """The bytes, once they are there. Called once."""


class Recording(ABC):
    """Launches with their arguments that are done again at once (a CUDA graph)."""

    @abstractmethod
    def replay(self) -> None:
        """Does them."""

    @abstractmethod
    def close(self) -> None:
        """Forgets them; calling it twice is harmless."""

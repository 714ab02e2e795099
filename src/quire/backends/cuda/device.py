"""`Device`: the contract between the backend and a GPU.

`driver.py` implements it with NVIDIA's driver, `emulated.py` with NumPy. Launches and copies are
done in the order in which they are given. Nothing waits for the device but `download`, `read`,
`write` and `Download.wait`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.kernel import Action, DeviceRanks, Exchange, Launch
from quire.backends.cuda.memory import Buffer, Memory
from quire.errors import BackendError
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
    """A GPU. One caller at a time, but for `hold`, `drop`, `read` and `write`, which any thread may
    call at any time.

    While launches are recorded, nothing else may be done on their stream. So `hold`, `read` and
    `write` use a stream of their own, and memory is given back under a lock that a recording holds.
    `drop` does not wait for this lock, because it is called by destructors, which may run on the
    thread that has it: the memory is left to that thread then.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        """Held while launches are recorded, and while memory is given back."""
        self._dropped: deque[Memory] = deque()

    @property
    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Its properties."""

    @abstractmethod
    def hold(self, memory: Memory) -> None:
        """Takes memory of this size, filled with zeros; nothing if it is held already. Raises
        BackendError if there is not enough."""

    def release(self, memory: Memory) -> None:
        """Gives the memory back, once everything before it is done. Nothing if it is not held."""
        with self._lock:
            self._free(memory)
        self._free_dropped()

    def drop(self, memory: Memory) -> None:
        """The same, at once or soon, for memory that is not held again."""
        self._dropped.append(memory)
        self._free_dropped()

    def _free_dropped(self) -> None:
        """Gives back what was dropped, unless the lock is held: who holds it does so afterwards."""
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                with suppress(IndexError):  # another thread has taken the last one
                    self._free(self._dropped.popleft())
            finally:
                self._lock.release()

    @abstractmethod
    def _free(self, memory: Memory) -> None:
        """Gives the memory back, for `release` and `drop`."""

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
        """The same as `download`, by any thread: what was launched before is done then, and later
        launches do not wait."""

    @abstractmethod
    def write(self, target: Buffer, data: NDArray[np.generic]) -> None:
        """The same as `upload`, by any thread, and waits until it is done. It is done after what
        was launched before."""

    def record(self, work: Callable[[], None]) -> Recording:
        """Runs `work`, whose launches are not done but recorded. It may not copy."""
        try:
            with self._lock:
                return self._record(work)
        finally:
            self._free_dropped()

    @abstractmethod
    def _record(self, work: Callable[[], None]) -> Recording:
        """Records, for `record`."""

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


def raw_bytes(data: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The bytes of an array whose numbers follow each other. Raises BackendError for others."""
    if not data.flags.c_contiguous:
        raise BackendError("an array that is copied must be contiguous")
    return data.reshape(-1).view(np.uint8)

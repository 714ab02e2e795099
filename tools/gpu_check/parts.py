"""The parts of the check, in order, and the sizes that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from tools.gpu_check.report import Row

from quire.backends.cuda.backend import open_device
from quire.backends.cuda.device import Device


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of what is computed."""

    is_emulated: bool
    product: tuple[int, int]
    """Rows and columns of a weight."""
    rows: tuple[int, ...]
    """Rows of x whose products are timed."""
    copied_bytes: int
    requests: tuple[int, ...]
    """Numbers of requests that generate at once."""
    new_tokens: int
    """Tokens that each of them generates."""
    prompt: int
    """Tokens of the long prompt."""
    context: int
    """Tokens before the one that a timed step computes."""
    least_seconds: float
    """For so long a measurement is repeated."""
    sameness_seconds: float
    most_cases: int


GPU = Sizes(
    is_emulated=False, product=(28672, 4096), rows=(1, 32, 256, 2048), copied_bytes=1 << 30,
    requests=(1, 32, 256), new_tokens=64, prompt=2048, context=1024, least_seconds=0.2,
    sameness_seconds=20.0, most_cases=1000,
)  # fmt: skip
EMULATED = Sizes(
    is_emulated=True, product=(64, 96), rows=(1, 5), copied_bytes=1 << 12, requests=(1, 2),
    new_tokens=2, prompt=24, context=8, least_seconds=0.0, sameness_seconds=2.0, most_cases=6,
)  # fmt: skip

Part = Callable[[Device, Sizes], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A part, which runs in a process of its own."""

    module: str
    function: str
    most_seconds: float
    """After so long its process is ended."""

    def run(self, sizes: Sizes) -> Iterator[Row]:
        """The results, as they are found."""
        made: Part = getattr(import_module(f"tools.gpu_check.{self.module}"), self.function)
        return made(open_device(0), sizes)


PARTS = {
    "launch": Entry("basics", "check_launch", 20),
    "bits": Entry("bits", "check_bits", 20),
    "sampling": Entry("sampling", "check_sampling", 15),
    "steps": Entry("steps", "check_steps", 25),
    "bandwidth": Entry("bandwidth", "check_bandwidth", 25),
    "demo": Entry("speed", "check_demo", 30),
    "8b": Entry("speed", "check_8b", 60),
    "sameness": Entry("sameness", "check_sameness", 35),
    "families": Entry("families", "check_families", 20),
    "ranks": Entry("ranks", "check_ranks", 30),
}
"""A kernel that fails can spoil its process, so each part has one."""

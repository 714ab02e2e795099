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
    done: frozenset[str] = frozenset()
    """Names of checks that are left out."""
    is_child: bool = False
    """Whether the names of checks are printed as they begin, for a parent process."""


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
    """A part, which runs in a process of its own, and in another one after a fault."""

    module: str
    function: str
    most_seconds: float
    """After so long its process is ended."""
    check_seconds: float
    """After so long in one check its process is ended, and another one does the other checks."""

    def run(self, sizes: Sizes) -> Iterator[Row]:
        """The results, as they are found."""
        made: Part = getattr(import_module(self.module), self.function)
        return made(open_device(0), sizes)


def _entry(module: str, function: str, most_seconds: float, check_seconds: float) -> Entry:
    return Entry(f"tools.gpu_check.{module}", function, most_seconds, check_seconds)


PARTS = {
    "launch": _entry("basics", "check_launch", 20, 10),
    "bits": _entry("bits", "check_bits", 20, 8),
    "sampling": _entry("sampling", "check_sampling", 15, 8),
    "steps": _entry("steps", "check_steps", 25, 12),
    "bandwidth": _entry("bandwidth", "check_bandwidth", 25, 12),
    "demo": _entry("speed", "check_demo", 30, 20),
    "8b": _entry("speed", "check_8b", 60, 45),
    "sameness": _entry("sameness", "check_sameness", 35, 30),
    "families": _entry("families", "check_families", 20, 6),
    "ranks": _entry("ranks", "check_ranks", 30, 30),
}
"""The most informative first: if no time is left, the last ones are left out."""


def entry_of(name: str) -> Entry:
    """A part by its name, or the function `MODULE:FUNCTION`. Raises ValueError."""
    if name in PARTS:
        return PARTS[name]
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"no part {name!r}; one of {', '.join(PARTS)}, or MODULE:FUNCTION")
    return Entry(module, function, 30, 10)

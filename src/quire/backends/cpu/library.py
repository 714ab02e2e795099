"""Loads the native library of the best instruction-set tier that this machine can run.

Knows the files that the build leaves in `_native/` and nothing of what the functions do.
"""

from __future__ import annotations

import hashlib
import importlib
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError, ConfigError
from quire.log import get_logger
from quire.system.libc import libc_version
from quire.weights.mapped_file import use_guard

logger = get_logger(__name__)

TIERS = ("generic", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx")
"""Of `quire_tier` in quire.h, mostly in order of speed; which one is best, `best_tier` says."""

_CHECKED_STRUCTS = (
    "quire_op", "quire_model_spec", "quire_part", "quire_packing", "quire_batch", "quire_sampling",
    "quire_output",
)  # fmt: skip
"""In the order of `quire_struct_sizes`."""


@dataclass(frozen=True, slots=True)
class Library:
    """One tier's library, loaded and checked against the header it is called by."""

    isa: str
    ffi: Any
    lib: Any
    available: tuple[str, ...]
    """Every tier that this machine can run and that was built."""

    def code(self, name: str) -> int:
        """A constant of quire.h: the numbers of its enums are written there alone."""
        value: int = getattr(self.lib, name)
        return value

    def error(self, what: str) -> BackendError:
        """What the last failed call said."""
        message = self.ffi.string(self.lib.quire_last_error()).decode("utf-8", "replace")
        return BackendError(f"{what}: {message}")


@cache
def load(isa: str | None = None) -> Library:
    """The library of tier `isa`, or of the best one. Raises BackendError if there is none.

    From then on this process survives mapped files that are cut short.
    """
    if isa is not None and isa not in TIERS:
        raise ConfigError(f"QUIRE_ISA={isa!r} is not a tier; use one of {', '.join(TIERS)}")
    begin = time.perf_counter()
    ffi = _interface()
    available = _available(ffi)
    is_intel = bool(_open(ffi, "generic").quire_cpu_is_intel())
    chosen = isa or best_tier(available, is_intel)
    if chosen not in available:
        raise BackendError(
            f"tier {chosen} cannot run here; this machine and build have {', '.join(available)}"
        )
    lib = _open(ffi, chosen)
    guard_mappings()
    logger.debug("loaded the %s library in %.3f s", chosen, time.perf_counter() - begin)
    return Library(chosen, ffi, lib, available)


@cache
def build(isa: str) -> str:
    """Names a tier's library by its bytes, and the C library, of which it has sines and cosines."""
    digest = hashlib.sha256(_path(isa).read_bytes()).hexdigest()
    return f"{isa} {digest[:32]} {libc_version()}"


@cache
def guard_mappings() -> None:
    """Lends the native guard to every mapping of a weights file. Raises BackendError if there is
    no library. The generic one does it, whichever tier computes: a process has one handler."""
    ffi = _interface()
    use_guard(_NativeGuard(ffi, _open(ffi, "generic")))


class _NativeGuard:
    """`PageGuard` in native code, which alone may run where a page is missing."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self._lib = lib

    def watch(self, data: NDArray[np.uint8], name: str) -> int:
        pointer = self._ffi.from_buffer("uint8_t[]", data)
        words = name.encode(errors="replace")
        slot: int = self._lib.quire_watch_mapping(pointer, data.nbytes, words)
        if slot < 0:
            raise BackendError(f"{name} cannot be watched: too many files are mapped")
        return slot

    def forget(self, slot: int) -> None:
        self._lib.quire_forget_mapping(slot)

    def fault(self, slot: int) -> int | None:
        offset: int = self._lib.quire_mapping_fault(slot)
        return None if offset < 0 else offset


def best_tier(available: tuple[str, ...], is_intel: bool) -> str:
    """The fastest of the tiers that are there, by the processor alone: a measurement could choose
    otherwise at the next start, and tiers may differ in the last bit.

    That is the last one, except that Intel's cores have half the bfloat16 dot products of AMD's:
    without AMX, float32 products of widened weights are as fast for one row, 1.3 times as fast
    for 32 and 1.5 times for 512 (measured on a Xeon with its AMX left out).
    """
    if is_intel and available[-1] == "avx512_bf16" and "avx512" in available:
        return "avx512"
    return available[-1]


def _interface() -> Any:
    try:
        return importlib.import_module("quire.backends.cpu._native.abi").ffi
    except ModuleNotFoundError:
        raise BackendError(
            "the native library was not built; reinstall Quire where there is a C++ compiler"
        ) from None


def _path(isa: str) -> Path:
    return Path(__file__).parent / "_native" / f"libquire_{isa}.so"


@cache
def _open(ffi: Any, isa: str) -> Any:
    path = _path(isa)
    try:
        lib = ffi.dlopen(str(path))
    except OSError as error:
        raise BackendError(f"{path} does not load: {error}") from None
    if lib.quire_abi_version() != lib.QUIRE_ABI_VERSION:
        raise BackendError(
            f"{path} has ABI version {lib.quire_abi_version()}, not {lib.QUIRE_ABI_VERSION}; "
            "reinstall Quire"
        )
    sizes = ffi.new(f"int64_t[{len(_CHECKED_STRUCTS)}]")
    lib.quire_struct_sizes(sizes)
    for name, size in zip(_CHECKED_STRUCTS, sizes, strict=True):
        if ffi.sizeof(name) != size:
            raise BackendError(f"{path} was built from another header: {name} differs")
    tiers = {_tier_code(lib, name): name for name in TIERS}
    if (tier := tiers[lib.quire_library_tier()]) != isa:
        raise BackendError(f"{path} was built for tier {tier}")
    return lib


@cache
def _available(ffi: Any) -> tuple[str, ...]:
    """Tiers that were built and run here. The generic library, which runs anywhere, is asked."""
    generic = _open(ffi, "generic")
    runnable = generic.quire_cpu_tiers()
    return tuple(
        name
        for name in TIERS
        if runnable >> _tier_code(generic, name) & 1 and _path(name).is_file()
    )


def _tier_code(lib: Any, isa: str) -> int:
    """quire_tier."""
    code: int = getattr(lib, f"QUIRE_TIER_{isa.upper()}")
    return code

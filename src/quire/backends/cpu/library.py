"""Loads the native library of the best instruction-set tier that this machine can run.

The build writes one library per tier to `_native/`.
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
"""The tiers of `quire_tier` in quire.h, mostly in order of speed; `best_tier` chooses among them.
"""

_CHECKED_STRUCTS = (
    "quire_op", "quire_model_spec", "quire_part", "quire_packing", "quire_batch", "quire_sampling",
    "quire_output",
)  # fmt: skip
"""Structs whose sizes are compared with the library's, in the order of `quire_struct_sizes`."""


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library of one tier. Its structs and version match quire.h."""

    isa: str
    ffi: Any
    lib: Any
    available: tuple[str, ...]
    """Every tier that was built and that this machine can run."""

    def code(self, name: str) -> int:
        """Return the value of a constant of quire.h."""
        value: int = getattr(self.lib, name)
        return value

    def error(self, what: str) -> BackendError:
        """Return an error with the message of the last failed call."""
        message = self.ffi.string(self.lib.quire_last_error()).decode("utf-8", "replace")
        return BackendError(f"{what}: {message}")


@cache
def load(isa: str | None = None) -> Library:
    """Return the library of tier `isa`, or of the best tier. Raises BackendError if it cannot run.

    Afterwards, this process survives the truncation of mapped files.
    """
    if isa is not None and isa not in TIERS:
        raise ConfigError(f"QUIRE_ISA must be one of {', '.join(TIERS)}, not {isa!r}")
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
    """Return a name of everything that determines the bits of a tier's results: the bytes of its
    library and the version of the C library, which computes sines and cosines."""
    digest = hashlib.sha256(_path(isa).read_bytes()).hexdigest()
    return f"{isa} {digest[:32]} {libc_version()}"


@cache
def guard_mappings() -> None:
    """Guards every new mapping of a weights file with the native guard. Raises BackendError if the
    library is missing. The generic library does this for all tiers, because a process has one
    signal handler."""
    ffi = _interface()
    use_guard(_NativeGuard(ffi, _open(ffi, "generic")))


class _NativeGuard:
    """`PageGuard` in native code: the handler of a missing page cannot run Python."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self._lib = lib

    def watch(self, data: NDArray[np.uint8], name: str) -> int:
        pointer = self._ffi.from_buffer("uint8_t[]", data)
        words = name.encode(errors="replace")
        slot: int = self._lib.quire_watch_mapping(pointer, data.nbytes, words)
        if slot < 0:
            raise BackendError(f"{name} cannot be guarded: too many files are mapped")
        return slot

    def forget(self, slot: int) -> None:
        self._lib.quire_forget_mapping(slot)

    def fault(self, slot: int) -> int | None:
        offset: int = self._lib.quire_mapping_fault(slot)
        return None if offset < 0 else offset


def best_tier(available: tuple[str, ...], is_intel: bool) -> str:
    """Return the fastest available tier for this processor.

    Nothing is measured: a measurement could choose another tier at the next start, and tiers may
    differ in the last bit. The fastest tier is the last one, with an exception: Intel's cores have
    half the throughput of AMD's for bfloat16 dot products. Without AMX, float32 products of widened
    weights are as fast for 1 row, 1.3 times as fast for 32 rows and 1.5 times as fast for 512 rows
    (measured on a Xeon without use of its AMX).
    """
    if is_intel and available[-1] == "avx512_bf16" and "avx512" in available:
        return "avx512"
    return available[-1]


def _interface() -> Any:
    try:
        return importlib.import_module("quire.backends.cpu._native.abi").ffi
    except ModuleNotFoundError:
        raise BackendError(
            "the native library was not built; install a C++ compiler and reinstall Quire"
        ) from None


def _path(isa: str) -> Path:
    return Path(__file__).parent / "_native" / f"libquire_{isa}.so"


@cache
def _open(ffi: Any, isa: str) -> Any:
    path = _path(isa)
    try:
        lib = ffi.dlopen(str(path))
    except OSError as error:
        raise BackendError(f"{path} cannot be loaded: {error}") from None
    if lib.quire_abi_version() != lib.QUIRE_ABI_VERSION:
        raise BackendError(
            f"{path} must have ABI version {lib.QUIRE_ABI_VERSION}, not {lib.quire_abi_version()}; "
            "reinstall Quire"
        )
    sizes = ffi.new(f"int64_t[{len(_CHECKED_STRUCTS)}]")
    lib.quire_struct_sizes(sizes)
    for name, size in zip(_CHECKED_STRUCTS, sizes, strict=True):
        if ffi.sizeof(name) != size:
            raise BackendError(
                f"{path} was built from another quire.h: {name} differs; reinstall Quire"
            )
    tiers = {_tier_code(lib, name): name for name in TIERS}
    if (tier := tiers[lib.quire_library_tier()]) != isa:
        raise BackendError(f"{path} must be built for tier {isa}, not {tier}; reinstall Quire")
    return lib


@cache
def _available(ffi: Any) -> tuple[str, ...]:
    """Tiers that were built and that this machine can run, according to the generic library, which
    runs everywhere."""
    generic = _open(ffi, "generic")
    runnable = generic.quire_cpu_tiers()
    return tuple(
        name
        for name in TIERS
        if runnable >> _tier_code(generic, name) & 1 and _path(name).is_file()
    )


def _tier_code(lib: Any, isa: str) -> int:
    """Return the quire_tier of a tier's name."""
    code: int = getattr(lib, f"QUIRE_TIER_{isa.upper()}")
    return code

"""Loads the native library of the best instruction-set tier that this machine can run.

An installation has the library of at least one tier: a wheel has all of them, an installation from
source has the best one of its machine. `libquire_machine` runs on every processor: it says which
tiers can be loaded, and guards mapped files.

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
from quire.system.free_memory import libc_version
from quire.weights.mapped_file import use_guard

logger = get_logger(__name__)

TIERS = (
    "generic", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx", "neon_dotprod", "neon_i8mm",
)  # fmt: skip
"""The names of `quire_tier` in quire.h. Those of one kind of processor are mostly in order of
speed; `best_tier` has the exception."""

DTYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "INT8", "int4": "INT4"}
"""The names of dtypes in quire.h."""

REINSTALL = "pip install --force-reinstall --no-cache-dir quire-engine"
"""Compiles again: without `--no-cache-dir`, pip may take a wheel that it built elsewhere."""

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
    """Every tier of this installation that this machine can run."""

    def code(self, name: str) -> int:
        """Return the value of a constant of quire.h."""
        value: int = getattr(self.lib, name)
        return value

    def dtype(self, name: str) -> int:
        """Return a quire_dtype."""
        return self.code(f"QUIRE_{DTYPES[name]}")

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
    available = tuple(tier for tier in built_tiers() if tier in runnable_tiers())
    if not available:
        raise BackendError(
            f"this processor can run none of the tiers of this installation "
            f"({', '.join(built_tiers()) or 'none'}), but {', '.join(runnable_tiers())}; "
            f"reinstall Quire on this machine: {REINSTALL}"
        )
    chosen = isa or best_tier(available)
    if chosen not in available:
        raise BackendError(f"tier {chosen} cannot be loaded: {_why_not(chosen)}")
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
    """Guards every mapping of a weights file from here on. Raises BackendError if there is no
    native library."""
    ffi = _interface()
    use_guard(_NativeGuard(ffi, _machine(ffi)))


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


def built_tiers() -> tuple[str, ...]:
    """The tiers of this installation, whether this processor can run them or not."""
    return tuple(tier for tier in TIERS if _path(tier).is_file())


@cache
def runnable_tiers() -> tuple[str, ...]:
    """The tiers that this processor and kernel can run, whether they are installed or not.

    Raises BackendError if the native library is missing.
    """
    ffi = _interface()
    machine = _machine(ffi)
    bits = machine.quire_cpu_tiers()
    return tuple(tier for tier in TIERS if bits >> _tier_code(machine, tier) & 1)


def best_tier(available: tuple[str, ...], is_intel: bool | None = None) -> str:
    """The fastest of these tiers; the processor alone decides (`machine/cpu_tiers.h`).

    `is_intel`: the vendor; None: that of this processor.
    """
    machine = _machine(_interface())
    if is_intel is None:
        is_intel = bool(machine.quire_cpu_is_intel())
    codes = {_tier_code(machine, tier): tier for tier in available}
    return codes[machine.quire_best_tier(sum(1 << code for code in codes), is_intel)]


def _why_not(tier: str) -> str:
    if tier not in runnable_tiers():
        return f"this processor cannot run it; it can run {', '.join(runnable_tiers())}"
    return (
        f"this installation has {', '.join(built_tiers())}; to have all tiers, reinstall Quire: "
        f"QUIRE_TIERS=all {REINSTALL}"
    )


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
def _machine(ffi: Any) -> Any:
    return _dlopen(ffi, _path("machine"))


def _dlopen(ffi: Any, path: Path) -> Any:
    try:
        lib = ffi.dlopen(str(path))
    except OSError as error:
        raise BackendError(f"{path} cannot be loaded: {error}") from None
    if lib.quire_abi_version() != lib.QUIRE_ABI_VERSION:
        raise BackendError(
            f"{path} must have ABI version {lib.QUIRE_ABI_VERSION}, not {lib.quire_abi_version()}; "
            "reinstall Quire"
        )
    return lib


@cache
def _open(ffi: Any, isa: str) -> Any:
    path = _path(isa)
    lib = _dlopen(ffi, path)
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


def _tier_code(lib: Any, isa: str) -> int:
    """Return the quire_tier of a tier's name."""
    code: int = getattr(lib, f"QUIRE_TIER_{isa.upper()}")
    return code

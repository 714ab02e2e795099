"""`Cubin`: the machine code of a kernel for one architecture, and the names of its files.

An archive `cubins/sm_90.zip` has two files for each kernel: `KEY.cubin`, and `KEY.json` with what a
launch needs. The cache has the same files. The key is a digest of the kernel's record, the sources
of all kernels and Triton's version, so that old code is never found.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quire.backends.cuda.kernel import Kernel

TRITON_VERSION = "3.9.0"
"""The compiler. Another version may change bits, so it is a part of the backend's build."""
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
"""Compute capabilities that are compiled for when a wheel is built."""
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of a kernel for one architecture."""

    code: bytes
    facts: CubinFacts


@dataclass(frozen=True, slots=True)
class CubinFacts:
    """Facts that a launch of it needs."""

    symbol: str
    num_warps: int
    shared_bytes: int
    """Dynamic shared memory of a block."""
    global_scratch_bytes: int
    profile_scratch_bytes: int
    """Bytes of the memory that the two pointers point to which Triton adds to the arguments; all
    kernels have 0."""


@cache
def sources_digest() -> str:
    """Digest of the sources of all kernels and of the compiler's version."""
    digest = hashlib.sha256(TRITON_VERSION.encode())
    for path in sorted((_FOLDER / "kernels").rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def build_name(architecture: int) -> str:
    """Names all that may change bits of the results."""
    target = f"sm_{architecture}" if architecture else "emulated"
    return f"triton {TRITON_VERSION} {sources_digest()[:16]} {target}"


def key_of(kernel: Kernel) -> str:
    """The name of a kernel's files."""
    return hashlib.sha256(f"{kernel!r} {sources_digest()}".encode()).hexdigest()[:32]


def target_of(architecture: int) -> int:
    """The architecture whose code a GPU runs: its own, or for those before 9.0 an older one of
    the same generation."""
    own = [one for one in ARCHITECTURES if one // 10 == architecture // 10 and one <= architecture]
    return max(own) if own and architecture < 90 else architecture


def archive_of(target: int, folder: Path = _FOLDER / "cubins") -> Path:
    """The archive of an architecture."""
    return folder / f"sm_{target}.zip"

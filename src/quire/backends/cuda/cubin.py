"""`Cubin`: the machine code of a kernel for one architecture, and the names of its files.

An archive `cubins/sm_90.zip` has two files for each kernel: `KEY.cubin`, and `KEY.json` with what a
launch needs. The cache has the same files. The key is a digest of the kernel's record, the sources
of all kernels and of `build.py`, and Triton's version, so that old code is never found.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quire.backends.cuda.kernel import Kernel

TRITON_VERSION = "3.9.0"
"""The compiler. Another version may change bits, so it is a part of the backend's build."""
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
"""Compute capabilities that are compiled for when a wheel is built."""
_FOLDER = Path(__file__).parent
_WITH_BYTES, _PARAMETER = 4, 0x17


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
    """Digest of the sources of all kernels, and of what decides how they are compiled."""
    digest = hashlib.sha256(TRITON_VERSION.encode())
    for path in [_FOLDER / "build.py", *sorted((_FOLDER / "kernels").rglob("*.py"))]:
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


def parameter_sizes(code: bytes, symbol: str) -> list[int]:
    """Bytes of each parameter of a kernel, in order, as its machine code was compiled for them.

    Source: the sections `.nv.info.SYMBOL` of cubins, whose attributes `cuobjdump -elf` prints:
    number 0x17 (`EIATTR_KPARAM_INFO`) has the ordinal of a parameter, and its size.
    """
    [first] = struct.unpack_from("<Q", code, 0x28)  # of the section headers of an ELF file
    size, count, of_names = struct.unpack_from("<HHH", code, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", code, first + size * i) for i in range(count)]
    names = headers[of_names][4]
    wanted = f".nv.info.{symbol}".encode() + b"\0"
    for name, _, _, _, begin, length in headers:
        if code[names + name :].startswith(wanted):
            return _parameter_sizes(code[begin : begin + length])
    return []


def _parameter_sizes(info: bytes) -> list[int]:
    found: dict[int, int] = {}
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != _WITH_BYTES:  # the number is the value
            continue
        if attribute == _PARAMETER:
            _, ordinal, _, flags = struct.unpack_from("<IHHI", info, at)
            found[ordinal] = flags >> 18
        at += length
    return [found[ordinal] for ordinal in sorted(found)]

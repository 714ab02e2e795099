"""Finds the machine code of a kernel: shipped in the package, in the user's cache, or compiled now.

An archive `cubins/sm_90.zip` has two files for each kernel: `KEY.cubin`, and `KEY.json` with what a
launch needs. The cache has the same files. The key is a digest of the kernel's record, the sources
of all kernels and Triton's version, so that old code is never found.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from quire import env
from quire.backends.cuda.kernel import Kernel
from quire.errors import BackendError
from quire.files import replacing
from quire.log import get_logger

logger = get_logger(__name__)

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
    """What a launch of it needs."""

    symbol: str
    num_warps: int
    shared_bytes: int
    """Dynamic shared memory of a block."""
    global_scratch_bytes: int
    profile_scratch_bytes: int
    """Bytes behind the two pointers that Triton adds to the arguments; all kernels have 0."""


@cache
def sources_digest() -> str:
    """Digest of the sources of all kernels and of the compiler's version."""
    digest = hashlib.sha256(TRITON_VERSION.encode())
    for path in sorted((_FOLDER / "kernels").glob("*.py")):
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


def find_cubin(kernel: Kernel, architecture: int) -> Cubin:
    """Raises BackendError if it is nowhere and cannot be compiled."""
    target, key = target_of(architecture), key_of(kernel)
    found = _shipped(key, target) or _cached(key, target)
    if found is not None:
        return found
    if find_spec("triton") is None:
        raise BackendError(
            f"no compiled kernels for sm_{target} are installed; install quire-engine[cuda-build], "
            "which compiles them when they are first used"
        )
    from quire.backends.cuda.build import compile_kernel

    logger.info("compiling the kernel %s for sm_%d", kernel, target)
    made = compile_kernel(kernel, target)
    folder = _cache_folder(target)
    folder.mkdir(parents=True, exist_ok=True)
    facts = json.dumps(asdict(made.facts)).encode()
    for ending, data in (("cubin", made.code), ("json", facts)):
        with replacing(folder / f"{key}.{ending}") as file:
            file.write(data)
    return made


def archive_of(target: int, folder: Path = _FOLDER / "cubins") -> Path:
    """The archive of an architecture."""
    return folder / f"sm_{target}.zip"


def _shipped(key: str, target: int) -> Cubin | None:
    archive = _open_archive(archive_of(target))
    if archive is None or f"{key}.cubin" not in archive.namelist():
        return None
    return _read(archive.read(f"{key}.cubin"), archive.read(f"{key}.json"))


@cache
def _open_archive(path: Path) -> zipfile.ZipFile | None:
    return zipfile.ZipFile(path) if path.is_file() else None


def _cache_folder(target: int) -> Path:
    return env.cache_dir() / "cuda" / f"sm_{target}"


def _cached(key: str, target: int) -> Cubin | None:
    code, facts = (_cache_folder(target) / f"{key}.{ending}" for ending in ("cubin", "json"))
    if not (code.is_file() and facts.is_file()):
        return None
    return _read(code.read_bytes(), facts.read_bytes())


def _read(code: bytes, facts: bytes) -> Cubin:
    return Cubin(code, CubinFacts(**json.loads(facts)))

"""Finds the machine code of a kernel: shipped in the package, in the user's cache, or compiled
now."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from quire import env
from quire.backends.cuda.cubin import (
    ARCHITECTURES,
    Cubin,
    CubinFacts,
    archive_of,
    key_of,
    target_of,
)
from quire.backends.cuda.kernel import Kernel
from quire.errors import BackendError
from quire.files import replacing
from quire.log import get_logger

logger = get_logger(__name__)


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


def shipped_architectures() -> list[int]:
    """Architectures whose kernels are in this installation."""
    return [one for one in ARCHITECTURES if archive_of(one).is_file()]


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

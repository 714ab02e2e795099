"""Tests an untrusted tokenizer in a child process before this process loads it.

With a hostile file of a few lines the Rust library can abort the process or never return, which no
exception handler can stop. The child runs `trial_process`. The result is cached in the user's cache
directory, by the hash of the files' contents.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGABRT, SIGXCPU
from tempfile import TemporaryFile
from typing import IO

from quire import env
from quire.config.model_files import has_file, read_bytes
from quire.errors import CheckpointError
from quire.log import get_logger
from quire.system.child_python import module_command
from quire.tokenizer.rust_tokenizer import MAX_TOKENIZER_BYTES, MODEL, TEKKEN
from quire.units import GiB, MiB, format_bytes

logger = get_logger(__name__)

_FILES = (
    "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", TEKKEN, MODEL,
)  # fmt: skip
"""All that a tokenizer is made of."""
_VERSION = 1
"""Of the trial; raise it when the trial checks more."""
_MAX_REMEMBERED = 1000
_CPU_S = 30
_CPU_S_PER_MIB = 2
_MEMORY = 2 * GiB
_MEMORY_PER_BYTE = 64
_MAX_WORDS = 300
_NO_MEMORY = ("memory allocation of", "capacity overflow", "MemoryError", "bad_alloc")
"""What Rust, Python and C++ write when memory cannot be had."""
_WALL_FACTOR = 10
"""Wall-clock limit in multiples of the processor time limit: a loaded machine may give the process
a tenth of a core."""


def try_out(directory: Path) -> None:
    """Raises CheckpointError if loading the tokenizer there, or encoding a short text with it,
    ends or hangs a process, or needs far more memory than its files have.

    Other errors in the files are found when this process loads them.
    """
    paths = [path for name in _FILES if has_file(path := directory / name)]
    if not paths:
        return
    contents = {path.name: read_bytes(path, max_bytes=MAX_TOKENIZER_BYTES) for path in paths}
    passed = _place(contents)
    if passed is not None and os.access(passed, os.F_OK):
        return
    try:
        _run(paths[0], sum(map(len, contents.values())))
    except _UntriedError as error:
        logger.warning("the tokenizer is loaded without a trial in a child process: %s", error)
        return
    if passed is not None:
        _remember(passed)


class _UntriedError(Exception):
    """The trial could not be run, for a reason other than the tokenizer."""


def _place(files: Mapping[str, bytes]) -> Path | None:
    """The marker file of a passed trial of these contents; None: there is no home directory."""
    import tokenizers

    digest = hashlib.sha256(f"{_VERSION} {tokenizers.__version__}".encode())
    for name, data in files.items():
        digest.update(f"\n{name} {len(data)}\n".encode())
        digest.update(data)
    try:
        return env.cache_dir() / "tokenizers" / digest.hexdigest()
    except RuntimeError:
        return None


def _remember(passed: Path) -> None:
    """Creates the marker, an empty file: an atomic step, so that processes may race."""
    try:
        passed.parent.mkdir(parents=True, exist_ok=True)
        others = list(passed.parent.iterdir())
        if len(others) >= _MAX_REMEMBERED:
            for other in others:
                other.unlink(missing_ok=True)
        passed.touch()
    except OSError as error:
        logger.debug("%s: %s; the tokenizer is tried again at the next start", passed, error)


def _run(file: Path, num_bytes: int) -> None:
    """Returns if the trial passed. `file`: the first of the files, for messages."""
    import subprocess

    cpu_s = _CPU_S + _CPU_S_PER_MIB * num_bytes // MiB
    memory = _MEMORY + _MEMORY_PER_BYTE * num_bytes
    words = [str(file.parent), str(cpu_s), str(memory)]
    if not sys.executable or getattr(sys, "frozen", False):
        raise _UntriedError("there is no interpreter")
    with TemporaryFile() as errors:
        try:
            done = subprocess.run(
                module_command("quire.tokenizer.trial_process", *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "RUST_BACKTRACE": "0"},
                timeout=cpu_s * _WALL_FACTOR,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            stages, died = expired.stdout or b"", f"does not end in {expired.timeout:.0f} s"
        except OSError as error:
            raise _UntriedError(str(error)) from None
        else:
            stages, died = done.stdout, _death(done.returncode, cpu_s, memory, _end_of(errors))
    if died and not stages:
        raise _UntriedError(f"it {died}")
    if died:
        stage = stages.decode("utf-8", "replace").splitlines()[-1]
        raise CheckpointError(f"{file}: the tokenizers library {died}, as it {stage}")


def _end_of(file: IO[bytes]) -> str:
    """The last words that a process wrote to a file."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_WORDS))
    return " ".join(file.read().decode("utf-8", "replace").split())


def _death(code: int, cpu_s: int, memory: int, words: str) -> str:
    """The meaning of the exit code; empty for 0. `words`: the end of standard error."""
    if code >= 0:
        return f"ends with exit code {code}" if code else ""
    if -code == SIGXCPU:
        return f"takes more than {cpu_s} s of processor time"
    if -code != SIGABRT:
        return f"dies of signal {-code}"
    if any(mark in words for mark in _NO_MEMORY):
        return f"needs more than {format_bytes(memory)} of memory"
    return f"aborts the process ({words})" if words else "aborts the process without a message"

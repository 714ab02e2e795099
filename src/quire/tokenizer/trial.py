"""Tests an untrusted tokenizer in a child process before this process loads it.

With a hostile file of a few lines the Rust library can abort the process or never return, which no
exception handler can stop. The child runs `trial_process`. The result is cached in the user's cache
directory, by the hash of the files' contents.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from signal import SIGABRT, SIGXCPU
from tempfile import TemporaryFile
from typing import IO

from quire import env
from quire.config.checkpoint.model_files import has_file, read_bytes
from quire.errors import CheckpointError
from quire.log import get_logger
from quire.system.child_process import ChildProcess, StoppedError, encoded_job
from quire.system.child_python import dying_command
from quire.tokenizer.rust_tokenizer import MAX_TOKENIZER_BYTES, MODEL, TEKKEN
from quire.tokenizer.trial_process import DECODE, DONE, ENCODE, IMPORT, LOAD, TOO_MANY_STEPS
from quire.units import GiB, MiB, format_bytes

logger = get_logger(__name__)

_FILES = (
    "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", TEKKEN, MODEL,
)  # fmt: skip
"""All files that a tokenizer may consist of."""
_VERSION = 2
"""The version of the trial; raise it when the trial checks more."""
_MAX_REMEMBERED = 1000
_CPU_S = 30
_CPU_S_PER_MIB = 2
_MEMORY = 2 * GiB
_MEMORY_PER_BYTE = 64
_MAX_WORDS = 300
_NO_MEMORY = ("memory allocation of", "capacity overflow", "MemoryError", "bad_alloc")
"""Messages of Rust, Python and C++ when an allocation fails."""
_EXIT_S = 2.0
_WALL_FACTOR = 10
"""Wall-clock limit in multiples of the processor time limit: a loaded machine may give the process
a tenth of a core."""
_TEXTS = (
    "Hello, world! It's 12345 or 3.14?\n\tdef f(x): return x\n\n",
    "Grüße, \u4f60\u597d, \u043f\u0440\u0438\u0432\u0435\u0442, \u0645\u0631\u062d\u0628\u0627 "
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \ufb01 \u0130",
    "",
    "a" * 2000,
    " " * 2000,
    "".join(map(chr, range(0x250))),
    *(
        run * (4000 // len(run)) + "!1a\n"
        for run in ("ab", "A", "12", " ", " \t", "\n", ".,", "\u4f60\u597d", "'s")
    ),
)
"""The last ones need many steps of an expression that looks for the end of a run in many ways. The
library gives up after ten million steps from one place, so longer runs need fewer."""
_STEPS = {
    "loads it": LOAD,
    **{
        f"encodes {text[:20]!r} ({len(text)} characters)": ENCODE + text.encode() for text in _TEXTS
    },
    "decodes its tokens": DECODE,
}
"""The jobs of a trial, by their names in messages."""


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
    """The marker file of a passed trial of these contents; None without a home directory."""
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
    cpu_s = _CPU_S + _CPU_S_PER_MIB * num_bytes // MiB
    memory = _MEMORY + _MEMORY_PER_BYTE * num_bytes
    wall_s = cpu_s * _WALL_FACTOR
    deadline = time.monotonic() + wall_s
    step = ""
    with TemporaryFile() as errors, closing(_child(file.parent, cpu_s, memory, errors)) as child:
        try:
            child.ask(encoded_job(IMPORT), deadline)
            for name, job in _STEPS.items():
                step = name
                child.ask(encoded_job(job), deadline)
            return
        except TimeoutError:
            died = f"does not end in {wall_s:.0f} s"
        except StoppedError as error:
            died = str(error)
        except (OSError, ValueError):
            died = _death(child.exit_code(_EXIT_S), cpu_s, memory, _end_of(errors))
    if not step:
        raise _UntriedError(f"it {died}")
    raise CheckpointError(f"{file}: the tokenizers library {died}, as it {step}")


def _child(directory: Path, cpu_s: int, memory: int, errors: IO[bytes]) -> ChildProcess:
    if not sys.executable or getattr(sys, "frozen", False):
        raise _UntriedError("no Python interpreter is known")
    words = (str(directory), str(cpu_s), str(memory))
    command = dying_command("quire.tokenizer.trial_process", *words)
    try:
        environment = {**os.environ, "RUST_BACKTRACE": "0"}
        return ChildProcess(command, DONE, 0, stderr=errors, env=environment)
    except OSError as error:
        raise _UntriedError(str(error)) from None


def _end_of(file: IO[bytes]) -> str:
    """The end of what a process wrote to a file."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_WORDS))
    return " ".join(file.read().decode("utf-8", "replace").split())


def _death(code: int, cpu_s: int, memory: int, words: str) -> str:
    """The meaning of the exit code. `words`: the end of standard error."""
    if code >= 0:
        return f"ends with exit code {code}"
    if -code == SIGXCPU:
        return f"takes more than {cpu_s} s of processor time"
    if -code != SIGABRT:
        return f"dies of signal {-code}"
    if TOO_MANY_STEPS in words:
        return "gives up on one of its regular expressions"
    if any(mark in words for mark in _NO_MEMORY):
        return f"needs more than {format_bytes(memory)} of memory"
    return f"aborts the process ({words})" if words else "aborts the process without a message"

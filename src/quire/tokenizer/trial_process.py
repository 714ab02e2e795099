"""The process that tries a tokenizer: loads it, encodes short texts, decodes every token.

Started by `trial` alone. Its exit code is 0 unless it was killed or aborted, even if there were
errors; the last line that it printed names the step that it was in.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_GRACE_S = 5
_TEXTS = (
    "Hello, world! It's 12345 or 3.14?\n\tdef f(x): return x\n\n",
    "Grüße, \u4f60\u597d, \u043f\u0440\u0438\u0432\u0435\u0442, \u0645\u0631\u062d\u0628\u0627 "
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \ufb01 \u0130",
    "",
    "a" * 2000,
    " " * 2000,
    "".join(map(chr, range(0x250))),
)
_NUM_DECODED = 1000


def main(directory: str, cpu_s: str, memory: str) -> int:
    """Tries the tokenizer of a directory within bounds: seconds of processor time, bytes."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + _GRACE_S))
    with suppress(ValueError, OSError):  # a lower limit is set already, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    try:
        _try(Path(directory))
    except MemoryError:
        os.write(2, b"MemoryError")
        os.abort()
    return 0


def _try(directory: Path) -> None:
    import tokenizers  # noqa: F401  (if this fails, the files are not the cause)

    from quire.errors import QuireError
    from quire.tokenizer.tokenizer import Tokenizer

    _tell("loads it")
    with suppress(QuireError):
        tokenizer = Tokenizer.from_directory(directory)
        for text in _TEXTS:
            _tell(f"encodes {text[:20]!r}")
            with suppress(QuireError):
                tokenizer.decode(tokenizer.encode(text))
        _tell("decodes its tokens")
        tokenizer.decode(range(min(_NUM_DECODED, tokenizer.vocab_size)))


def _tell(what: str) -> None:
    """Prints the next step, unbuffered, so that it is not lost if the process aborts."""
    os.write(1, f"{what}\n".encode())


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

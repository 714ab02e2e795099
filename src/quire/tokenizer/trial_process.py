"""The process that tries a tokenizer: loads it, encodes texts, decodes every token.

Started by `trial` alone, which sends each step as a job. Its exit code is 0 unless it was killed or
aborted; errors that `Tokenizer` raises are answered like successes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quire.system.child_serving import limit, limit_processor_time, serve

if TYPE_CHECKING:
    from quire.tokenizer.tokenizer import Tokenizer

DONE = b"D"
"""The kind of all replies, which have no payload."""
IMPORT, LOAD, ENCODE, DECODE = b"I", b"L", b"E", b"D"
"""First byte of a job. The text of `ENCODE` follows."""
_NUM_DECODED = 1000
TOO_MANY_STEPS = "retry-limit-in-match over"
"""The library's message about an expression on which it gives up."""


def main(directory: str, cpu_s: str, memory: str) -> int:
    """Tries the tokenizer of a directory within bounds: seconds of processor time, bytes."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_AS", int(memory))
    limit_processor_time(int(cpu_s))
    try:
        serve(_Steps(Path(directory)).run, sys.maxsize)
    except MemoryError:
        os.write(2, b"MemoryError")
        os.abort()
    return 0


class _Steps:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tokenizer: Tokenizer | None = None

    def run(self, job: bytes) -> tuple[bytes, bytes]:
        """Does one step. Without a tokenizer, the steps after `LOAD` do nothing."""
        from quire.errors import QuireError

        try:
            self._run(job[:1], job[1:])
        except QuireError as error:
            if TOO_MANY_STEPS in str(error):
                os.write(2, TOO_MANY_STEPS.encode())
                os.abort()
        return DONE, b""

    def _run(self, step: bytes, data: bytes) -> None:
        if step == IMPORT:
            import tokenizers  # noqa: F401  (if this fails, the files are not the cause)
        elif step == LOAD:
            from quire.tokenizer.tokenizer import Tokenizer

            self._tokenizer = Tokenizer.from_directory(self._directory)
        elif self._tokenizer is None:
            return
        elif step == ENCODE:
            self._tokenizer.decode(self._tokenizer.encode(data.decode()))
        else:
            self._tokenizer.decode(range(min(_NUM_DECODED, self._tokenizer.vocab_size)))

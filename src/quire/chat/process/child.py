"""The process in which chat templates run: reads jobs from its standard input, one at a time.

Started by `renderer_process.RenderProcess` only. It limits the damage that a template can do: this
process has no file, socket or environment variable of its parent, at most `MAX_MEMORY_BYTES`, and
the kernel ends it after its processor time. It ends when its parent closes the socket; the kernel
does that if the parent dies. It imports Jinja and no part of the engine.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from contextlib import suppress

from quire.chat.job import MAX_MEMORY_BYTES, ChatInput, RenderJob
from quire.chat.rendering import render
from quire.errors import RequestError
from quire.units import MiB

LENGTH_BYTES = 4
TEXT, REFUSAL = b"T", b"R"
"""The first byte of a reply. In lower case: the process ends after this reply."""
_LARGE_BYTES = 64 * MiB
"""A process that stays larger than this ends, which returns its memory to the system."""
_GC_THRESHOLD = 20_000
"""A job makes many values at once, and few reference cycles: collect less often."""


def main() -> None:
    """Answers until the parent closes the socket, or until the process has grown too much.

    A job is its length and JSON. A reply is a kind, a length, and the prompt or a `Refusal`.
    """
    gc.freeze()  # modules are never garbage
    gc.set_threshold(_GC_THRESHOLD)
    _limit_resources()
    memory = _open_memory()
    jobs, replies = sys.stdin.buffer, sys.stdout.buffer
    while head := jobs.read(LENGTH_BYTES):
        data = jobs.read(int.from_bytes(head, "big"))
        kind, payload = _answer(data)
        size = len(payload)
        is_last = _resident_bytes(memory) - size > _LARGE_BYTES
        replies.write((kind.lower() if is_last else kind) + size.to_bytes(LENGTH_BYTES, "big"))
        replies.write(payload)
        replies.flush()
        if is_last:
            return


def _answer(data: bytes) -> tuple[bytes, bytes]:
    """The kind and the payload of a reply."""
    try:
        return TEXT, _rendered(data)
    except RequestError as error:
        refusal = {"message": str(error), "parameter": error.parameter}
        return REFUSAL, json.dumps(refusal).encode()


def _rendered(data: bytes) -> bytes:
    try:
        fields = json.loads(data)
        job = RenderJob(chat=ChatInput(**fields.pop("chat")), **fields)
        _limit_processor_time(job.max_seconds)
        return render(job).encode()
    except MemoryError:
        raise RequestError("the chat needs too much memory", parameter="messages") from None
    except RecursionError:
        raise RequestError("the chat is nested too deeply", parameter="messages") from None
    except UnicodeEncodeError:
        raise RequestError(
            "the chat template gives text that is not valid Unicode", parameter="messages"
        ) from None


def _limit_resources() -> None:
    for name, most in (
        ("RLIMIT_AS", 2 * MAX_MEMORY_BYTES), ("RLIMIT_DATA", MAX_MEMORY_BYTES),
        ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0), ("RLIMIT_NPROC", 0),
    ):  # fmt: skip
        kind = getattr(resource, name, None)
        if kind is not None:
            _set_limit(kind, most)


def _limit_processor_time(seconds: float) -> None:
    most = int(time.process_time() + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def _set_limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))


def _open_memory() -> int | None:
    """The file with the memory use of this process; None where the system has no such file.

    `getrusage` gives a peak that includes the parent's, so it cannot be used.
    """
    with suppress(OSError):
        return os.open("/proc/self/statm", os.O_RDONLY)
    return None


def _resident_bytes(memory: int | None) -> int:
    if memory is None:
        return 0
    return int(os.pread(memory, 100, 0).split()[1]) * resource.getpagesize()

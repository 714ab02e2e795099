"""The process in which chat templates run: reads jobs from its standard input, one at a time.

Started by `process.RenderProcess` only. Whatever a template manages to do ends here: this process
has no file, socket or environment variable of its parent, little memory, and a processor time
after which the kernel ends it. It ends when its parent closes the socket, which the kernel does
for a parent that dies. It imports Jinja and no part of the engine.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any, BinaryIO

from quire.chat.job import MAX_MEMORY_BYTES, ChatInput, RenderJob
from quire.chat.rendering import render
from quire.errors import RequestError
from quire.units import MiB

LENGTH_BYTES = 4
TEXT, TEXT_AND_END, REFUSAL, REFUSAL_AND_END = b"T", b"t", b"R", b"r"
"""The first byte of a reply; after the small letters this process ends."""
_LARGE_BYTES = 96 * MiB
"""A process that once was larger is replaced, so that the system gets its memory back."""
_GRACE_S = 1


def main() -> None:
    """Answers until the parent closes the socket, or until the process has grown too much.

    A job is its length and JSON; a reply is a kind, a length, and a text or what was refused.
    """
    _limit_resources()
    jobs, replies = sys.stdin.buffer, sys.stdout.buffer
    while head := jobs.read(LENGTH_BYTES):
        data = jobs.read(int.from_bytes(head, "big"))
        is_last = _answer(data, replies)
        del data
        replies.flush()
        if is_last:
            return


def _answer(data: bytes, replies: BinaryIO) -> bool:
    """Writes one reply; whether it was the last."""
    try:
        payload, kind = _rendered(data), (TEXT, TEXT_AND_END)
    except RequestError as error:
        refusal = {"message": str(error), "parameter": error.parameter}
        payload, kind = json.dumps(refusal).encode(), (REFUSAL, REFUSAL_AND_END)
    is_last = _peak_bytes() > _LARGE_BYTES
    replies.write(kind[is_last] + len(payload).to_bytes(LENGTH_BYTES, "big"))
    replies.write(payload)
    return is_last


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
    most = int(time.process_time() + seconds) + 1 + _GRACE_S
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def _set_limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))


def _peak_bytes() -> int:
    peak: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024

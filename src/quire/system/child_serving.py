"""The child's side of `child_process`: limits its resources, reads jobs and writes replies.

Imports little, because it limits what hostile input can reach in the child. The child ends when its
parent closes the socket; the kernel does that if the parent dies.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress

_LENGTH_BYTES = 4


def serve(answer: Callable[[bytes], tuple[bytes, bytes]], large_bytes: int) -> None:
    """Answers jobs, one at a time, until the parent closes the socket.

    `answer` returns the kind of the reply, an upper-case letter, and its payload. A process that is
    still larger than `large_bytes` after a job ends, which returns its memory to the system.
    """
    memory = _open_memory()
    jobs = sys.stdin.buffer
    while head := jobs.read(_LENGTH_BYTES):
        kind, payload = answer(jobs.read(int.from_bytes(head, "big")))
        is_last = _resident_bytes(memory) - len(payload) > large_bytes
        send_reply(kind.lower() if is_last else kind, payload)
        if is_last:
            return


def exchange(kind: bytes, payload: bytes) -> bytes:
    """Within `answer`: sends a reply that is not the last one to the job, and returns what the
    parent sends after it. Raises OSError if the parent has closed the socket."""
    send_reply(kind, payload)
    jobs = sys.stdin.buffer
    head = jobs.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        raise OSError("the parent has closed the socket")
    return jobs.read(int.from_bytes(head, "big"))


def send_reply(kind: bytes, payload: bytes) -> None:
    """Writes a reply. A kind in lower case: the process ends after it."""
    replies = sys.stdout.buffer
    replies.write(kind + len(payload).to_bytes(_LENGTH_BYTES, "big"))
    replies.write(payload)
    replies.flush()


def limit_harm(max_memory_bytes: int) -> None:
    """Limits what hostile input can do to the system through this process: its memory is bounded,
    and it writes no file and starts no process."""
    limit("RLIMIT_AS", 2 * max_memory_bytes)
    limit("RLIMIT_DATA", max_memory_bytes)
    for name in ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NPROC"):
        limit(name, 0)


def limit(name: str, most: int) -> None:
    """Sets a limit of this process, such as `RLIMIT_AS`, where the system has it; a lower limit
    stays."""
    kind = getattr(resource, name, None)
    if kind is None:
        return
    with suppress(ValueError, OSError):  # the system refuses this limit
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def limit_processor_time(seconds: float) -> None:
    """Lets SIGXCPU end this process after it has used `seconds` more of processor time."""
    most = int(time.process_time() + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


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

"""The process in which pictures are decoded, started by `process` alone.

Decoders are large programs in C that read hostile bytes. This process has no file, socket or
environment variable of its parent, and the kernel limits its memory and its processor time.
"""

from __future__ import annotations

import gc

import msgspec

from quire.errors import RequestError
from quire.images.decode import decode
from quire.images.job import MAX_MEMORY_BYTES, PICTURE, REFUSAL, DecodeJob
from quire.system.child_serving import limit, limit_processor_time, serve
from quire.units import MiB

_LARGE_BYTES = 128 * MiB
_LIMITS = {
    "RLIMIT_AS": 2 * MAX_MEMORY_BYTES,
    "RLIMIT_DATA": MAX_MEMORY_BYTES,
    "RLIMIT_CORE": 0,
    "RLIMIT_FSIZE": 0,
    "RLIMIT_NPROC": 0,
}


def main() -> None:
    """Decodes pictures until the parent closes the socket, or until the process has grown."""
    gc.freeze()
    for name, most in _LIMITS.items():
        limit(name, most)
    serve(_answer, _LARGE_BYTES)


_jobs = msgspec.msgpack.Decoder(DecodeJob)


def _answer(data: bytes) -> tuple[bytes, bytes]:
    try:
        job = _jobs.decode(data)
        limit_processor_time(job.max_seconds)
        head, tiles = decode(job)
        encoded = msgspec.msgpack.encode(head)
        return PICTURE, b"".join([len(encoded).to_bytes(4, "big"), encoded, *tiles])
    except MemoryError:
        return REFUSAL, b"the image needs too much memory"
    except RequestError as error:
        return REFUSAL, str(error).encode()

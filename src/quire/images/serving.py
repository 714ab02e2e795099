"""The loop of the processes that decode files: a job, its tiles or its refusal, the next job."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from types import UnionType

import msgspec

from quire.errors import RequestError
from quire.images.job import MAX_MEMORY_BYTES, REFUSAL, TILES, DecodeJob
from quire.images.rules import Layout, Rules
from quire.system.child_serving import limit_harm, limit_processor_time, serve
from quire.units import MiB

_LARGE_BYTES = 128 * MiB
_jobs = msgspec.msgpack.Decoder(DecodeJob)


def serve_decoder(
    decode: Callable[[DecodeJob], tuple[Layout, list[bytes]]], rules: type[Rules] | UnionType
) -> None:
    """Decodes files until the parent closes the socket, or until the process has grown. `decode`
    raises RequestError for a file that cannot be used. `rules`: the type of its jobs' rules."""

    def answer(data: bytes) -> bytes:
        job = _jobs.decode(data)
        job.rules = msgspec.convert(job.rules, rules)
        limit_processor_time(job.max_seconds)
        begin = time.process_time()
        layout, tiles = decode(job)
        encoded = msgspec.msgpack.encode((layout, time.process_time() - begin))
        return b"".join([len(encoded).to_bytes(4, "big"), encoded, *tiles])

    serve_with_refusals(answer)


def serve_with_refusals(answer: Callable[[bytes], bytes]) -> None:
    """Serves jobs under the limits of decoders, until the parent closes the socket or the process
    has grown. `answer` raises RequestError for a file that cannot be used."""

    def checked(data: bytes) -> tuple[bytes, bytes]:
        try:
            return TILES, answer(data)
        except MemoryError:
            return REFUSAL, b"the file needs too much memory"
        except RequestError as error:
            return REFUSAL, str(error).encode()

    gc.freeze()
    limit_harm(MAX_MEMORY_BYTES)
    serve(checked, _LARGE_BYTES)

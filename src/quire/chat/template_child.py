"""The process in which chat templates run.

Started by `renderer_process.RenderProcess` only. It limits the damage that a template can do: this
process has no file, socket or environment variable of its parent, at most `MAX_MEMORY_BYTES`, and
the kernel ends it after its processor time. It imports Jinja and no part of the engine.
"""

from __future__ import annotations

import gc
import json

from quire.chat.job import MAX_MEMORY_BYTES, ChatInput, RenderJob
from quire.chat.rendering import render
from quire.errors import RequestError
from quire.system.child_serving import limit_harm, limit_processor_time, serve
from quire.units import MiB

TEXT, REFUSAL = b"T", b"R"
"""The kinds of replies: the prompt, or a `Refusal` as JSON."""
_LARGE_BYTES = 64 * MiB
_GC_THRESHOLD = 20_000
"""A job makes many values at once, and few reference cycles: collect less often."""


def main() -> None:
    """Renders jobs until the parent closes the socket, or until the process has grown too much."""
    gc.freeze()  # modules are never garbage
    gc.set_threshold(_GC_THRESHOLD)
    limit_harm(MAX_MEMORY_BYTES)
    serve(_answer, _LARGE_BYTES)


def _answer(data: bytes) -> tuple[bytes, bytes]:
    try:
        return TEXT, _rendered(data)
    except RequestError as error:
        refusal = {"message": str(error), "parameter": error.parameter}
        return REFUSAL, json.dumps(refusal).encode()


def _rendered(data: bytes) -> bytes:
    try:
        fields = json.loads(data)
        job = RenderJob(chat=ChatInput(**fields.pop("chat")), **fields)
        limit_processor_time(job.max_seconds)
        return render(job).encode()
    except MemoryError:
        raise RequestError("the chat needs too much memory", parameter="messages") from None
    except RecursionError:
        raise RequestError("the chat is nested too deeply", parameter="messages") from None
    except UnicodeEncodeError:
        raise RequestError(
            "the chat template gives text that is not valid Unicode", parameter="messages"
        ) from None

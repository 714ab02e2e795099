"""`decoded`: decodes a picture in a child process, because a hostile file can end or hang one.

The processes are shared by all callers of this process. They start with the first pictures and end
with this process. Any thread may call.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Sequence

import msgspec

from quire.errors import QuireError, RequestError
from quire.images.job import MAX_SECONDS, PICTURE, REFUSAL, DecodeJob
from quire.images.rules import AnyResizing, Layout
from quire.system.child_process import ChildPool, ChildProcess, encoded_job
from quire.system.child_python import isolated_command
from quire.units import GiB

MAX_PROCESSES = 2
"""With a second process, one slow picture does not delay all others."""
_CLOCK_S = 6 * MAX_SECONDS
"""Wall-clock time for a picture: on a loaded machine a child waits for a core."""
_EXIT_S = 2.0
_MAX_REPLY_BYTES = 1 * GiB
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH",)
_PACKAGES = ("quire", "PIL", "msgspec")
_layouts = msgspec.msgpack.Decoder(Layout)


def check_installed() -> None:
    """Raises QuireError unless Pillow is installed."""
    if importlib.util.find_spec("PIL") is None:
        raise QuireError(
            "images need the package Pillow, which is not installed: pip install 'quire[images]'"
        )


def decoded(
    data: bytes, rules: AnyResizing, more: Sequence[bytes] = ()
) -> tuple[Layout, memoryview]:
    """The layout and the bytes of all tiles. `more`: the other frames of a video. Raises
    RequestError for a file that cannot be used, and QuireError if no child can be started."""
    job = encoded_job(msgspec.msgpack.encode(DecodeJob(data, rules, [*more])))
    with _children.child() as child:
        kind, payload = _asked(child, job)
    if kind == REFUSAL:
        raise RequestError(bytes(payload).decode("utf-8", "replace"))
    size = int.from_bytes(payload[:4], "big")
    return _layouts.decode(payload[4 : 4 + size]), payload[4 + size :]


def _asked(child: ChildProcess, job: bytes) -> tuple[bytes, memoryview]:
    try:
        reply = child.ask(job, time.monotonic() + _CLOCK_S)
        return reply.kind, memoryview(reply.payload)
    except TimeoutError:
        raise RequestError(f"decoding the image takes more than {_CLOCK_S:g} s") from None
    except (OSError, ValueError) as error:
        code = child.exit_code(_EXIT_S)
        if code == -signal.SIGXCPU:
            why = f"takes more than {MAX_SECONDS:g} s of processor time"
            raise RequestError(f"decoding the image {why}") from None
        if code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            raise RequestError("the image file is damaged: it ends its decoder") from None
        if code == -signal.SIGKILL:
            raise RequestError("the image needs too much memory") from None
        raise QuireError(f"the process that decodes images has failed: {error}") from None


def _start() -> ChildProcess:
    check_installed()
    variables = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    try:
        command = isolated_command("quire.images.child", _PACKAGES, "images")
        return ChildProcess(command, PICTURE + REFUSAL, _MAX_REPLY_BYTES, env=variables, cwd="/")
    except OSError as error:
        raise QuireError(f"no process for images can be started: {error}") from None


_children = ChildPool(MAX_PROCESSES, _start)

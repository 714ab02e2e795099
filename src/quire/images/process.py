"""`decoded`: decodes a file in a child process, because a hostile file can end or hang one.

The processes are shared by all callers of this process. They start with the first files and end
with this process. Any thread may call.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from quire.errors import CapacityError, QuireError, RequestError
from quire.images.job import FRAMES, REFUSAL, TILES, WANTED, DecodeJob, SpectrumJob
from quire.images.modality import MODALITIES, SPECTRA, Decoder
from quire.images.rules import Layout, Rules
from quire.system.child_pool import ChildPool
from quire.system.child_process import ChildProcess, StoppedError, encoded_job
from quire.system.child_python import isolated_command
from quire.units import GiB, MiB

MAX_PROCESSES = 2
"""Most processes of each decoder. With two, one slow file does not delay all others."""
_CLOCK_FACTOR = 6
"""Wall-clock time over processor time: on a loaded machine a child waits for a core."""
_EXIT_S = 2.0
_MAX_REPLY_BYTES = 1 * GiB
_MOST_WANTED = 1 * MiB
_INHERITED_VARIABLES = ("LD_LIBRARY_PATH",)
_results = msgspec.msgpack.Decoder(tuple[Layout, float])


def check_installed() -> None:
    """Raises QuireError unless Pillow is installed."""
    if importlib.util.find_spec("PIL") is None:
        raise QuireError(
            "images need the package Pillow, which is not installed: pip install "
            "'quire-engine[images]'"
        )


class Source(Protocol):
    """The bytes of a file."""

    num_bytes: int

    def read_at(self, place: int, size: int) -> bytes:
        """The bytes from `place` on; fewer at the end."""


def spectrum(source: Source, bins: int, max_seconds: float, take: Callable[[bytes], None]) -> int:
    """Passes the spectrum of a sound (`log_powers`, float32) to `take`, block by block; an
    exception of it ends the work. Returns the number of samples. Raises as `decoded`."""
    answer = msgspec.msgpack.encode(SpectrumJob(source.num_bytes, bins, max_seconds))
    with _streams.child() as child:
        while True:
            kind, payload = _asked(child, encoded_job(answer), "audio", SPECTRA.max_seconds)
            if kind == WANTED:
                place, size = struct.unpack("<QI", payload)
                answer = source.read_at(place, min(size, _MOST_WANTED))
            elif kind == FRAMES:
                answer = b""
                take(bytes(payload))
            else:
                break
    if kind == REFUSAL:
        raise RequestError(bytes(payload).decode("utf-8", "replace"))
    return int.from_bytes(payload, "little")


def decoded(
    data: bytes, rules: Rules, more: Sequence[bytes] = ()
) -> tuple[Layout, memoryview, float]:
    """The layout and the bytes of all tiles, and the seconds of processor time that they took.
    `more`: the other frames of a video. Raises RequestError for a file that cannot be used,
    CapacityError if a signal stops the child, and QuireError if no child can be started."""
    decoder = MODALITIES[rules.modality].decoder
    what, seconds = decoder.files, decoder.max_seconds
    job = msgspec.msgpack.encode(DecodeJob(data, rules, [*more], max_seconds=seconds))
    with _children[decoder].child() as child:
        kind, payload = _asked(child, encoded_job(job), what, seconds)
    if kind == REFUSAL:
        raise RequestError(bytes(payload).decode("utf-8", "replace"))
    size = int.from_bytes(payload[:4], "big")
    layout, used_s = _results.decode(payload[4 : 4 + size])
    return layout, payload[4 + size :], used_s


def _asked(child: ChildProcess, job: bytes, what: str, seconds: float) -> tuple[bytes, memoryview]:
    limit = _CLOCK_FACTOR * seconds
    try:
        reply = child.ask(job, time.monotonic() + limit)
        return reply.kind, memoryview(reply.payload)
    except TimeoutError:
        raise RequestError(f"decoding the {what} takes more than {limit:g} s") from None
    except StoppedError as error:
        raise CapacityError(f"the process that decodes {what} files {error}") from None
    except (OSError, ValueError) as error:
        code = child.exit_code(_EXIT_S)
        if code == -signal.SIGXCPU:
            why = f"takes more than {seconds:g} s of processor time"
            raise RequestError(f"decoding the {what} {why}") from None
        if code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            raise RequestError(f"the {what} file is damaged: it ends its decoder") from None
        if code == -signal.SIGKILL:
            raise RequestError(f"the {what} needs too much memory") from None
        raise QuireError(f"the process that decodes {what} files has failed: {error}") from None


def _start(decoder: Decoder) -> ChildProcess:
    what, package = decoder.files, decoder.package
    if package == "PIL":
        check_installed()
    variables = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    variables["OPENBLAS_NUM_THREADS"] = "1"  # sums have one order then
    try:
        packages = ["quire", package, "msgspec"]
        if decoder.extra and importlib.util.find_spec(decoder.extra):
            packages.append(decoder.extra)
        command = isolated_command(decoder.module, packages, f"{what} files")
        kinds = TILES + REFUSAL + WANTED + FRAMES
        return ChildProcess(command, kinds, _MAX_REPLY_BYTES, env=variables, cwd="/")
    except OSError as error:
        raise QuireError(f"no process for {what} files can be started: {error}") from None


_children = {
    one: ChildPool(MAX_PROCESSES, partial(_start, one))
    for one in {modality.decoder for modality in MODALITIES.values()}
}
_streams = ChildPool(MAX_PROCESSES, partial(_start, SPECTRA))

"""The process of one rank: it loads its part of the model and does what the executor says.

Started by `nodes/rank_spawn.py` only, and never outlives the engine: the kernel kills it when the
thread that started it ends, and it ends itself when its connections close.
"""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from quire.errors import ConfigError, RankError
from quire.executor.messages import (
    Answer,
    Boot,
    Call,
    decode_boot,
    decode_call,
    encode,
    from_plain,
    to_plain,
)
from quire.executor.nodes.tls import messages_over, secured
from quire.log import configure, get_logger
from quire.ranks import Link, RankGroup

logger = get_logger(__name__)

_OF_STEPS = ("step", "begin_step", "end_step")
"""Methods that are called in each step, without a look at their arguments."""


def main(boot_fd: str, steps_fd: str, blocks_fd: str) -> int:
    """Serves until the connections close; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the engine decides when this process ends
    with suppress(EOFError, OSError):
        steps, blocks = (
            messages_over(secured(socket.socket(fileno=int(fd)), accepts=False))
            for fd in (steps_fd, blocks_fd)
        )
        with open(int(boot_fd), "rb") as file:
            boot = decode_boot(file.read())
        return _serve(boot, steps, blocks)
    return 0


def _serve(boot: Boot, steps: Connection, blocks: Connection) -> int:
    observability = boot.config.observability
    configure(observability.log_level, observability.log_config_file)
    try:
        worker = _worker(boot)
    except Exception as error:
        logger.debug("a rank could not be loaded", exc_info=True)
        steps.send_bytes(encode(_failed(0, error)))
        return 1
    steps.send_bytes(encode(Answer(0, worker.model.keeps_tokens)))
    threading.Thread(target=_serve_blocks, args=(worker, blocks), daemon=True).start()
    while True:
        answer = _answer(worker, decode_call(steps.recv_bytes()))
        if answer is not None:
            steps.send_bytes(encode(answer))


def _worker(boot: Boot) -> Any:
    # What computes is imported here, after the process is known to be wanted.
    from quire.worker.extension import worker_class
    from quire.worker.worker import Worker

    ranks = boot.config.parallel.ranks
    rank = ranks[boot.number]

    def link(other: int, fd: int) -> Link:
        connected = socket.socket(fileno=fd)
        return Link(str(ranks[other]), secured(connected, accepts=rank.number < other))

    first = rank.number - rank.tensor
    group = RankGroup(
        rank.tensor,
        {number - first: link(number, fd) for number, fd in boot.peers.items()},
        None if boot.before is None else link(rank.number - rank.tensor_size, boot.before),
        None if boot.after is None else link(rank.number + rank.tensor_size, boot.after),
        boot.generation,
        boot.shared_fd,
        boot.draft_fd,
    )
    worker = worker_class(boot.config, Worker)
    return worker(boot.config, rank, group if rank.world_size > 1 else None)


def _answer(worker: Any, call: Call) -> Answer | None:
    """Carry out a call. Returns the answer; None if the call needs no answer."""
    try:
        args, kwargs = from_plain(call.args), from_plain(call.kwargs)
        if call.is_of_model:
            found = getattr(worker.model, call.method)(*args, **kwargs)
        elif call.method in _OF_STEPS:
            found = getattr(worker, call.method)(*args)
        else:
            found = worker.call(call.method, *args, **kwargs)
        if call.is_silent:
            return None
        return Answer(call.number, to_plain(found), has_new_weights=worker.has_new_weights)
    except Exception as error:
        if not isinstance(error, ConfigError | ValueError):
            logger.debug("%s failed", call.method, exc_info=True)
        return _failed(call.number, error)


def call_at_once(worker: Any, call: Call) -> Any:
    """Runs a call that does not wait for steps; its result."""
    if call.method == "read_blocks":
        ids, group, kept = call.args
        out = bytearray(len(ids) * call.kwargs["block_bytes"])
        worker.read_blocks(ids, group, kept, memoryview(out))
        return bytes(out)
    if call.method == "write_blocks":
        return worker.write_blocks(call.args[0], memoryview(call.args[1]))
    return to_plain(worker.call(call.method, *call.args))


def _failed(number: int, error: Exception) -> Answer:
    text = str(error).strip() or "no message"
    is_own = type(error).__module__ == RankError.__module__ or isinstance(error, ValueError)
    kind = type(error).__name__
    return Answer(number, error=text if is_own else f"{kind}: {text}", kind=kind)


def _serve_blocks(worker: Any, blocks: Connection) -> None:
    """Copies KV blocks in and out, and loads adapters, also while a step computes."""
    with suppress(EOFError, OSError):
        while True:
            call = decode_call(blocks.recv_bytes())
            try:
                answer = Answer(call.number, call_at_once(worker, call))
            except Exception as error:
                answer = _failed(call.number, error)
            blocks.send_bytes(encode(answer))

"""A rank that dies, stops, raises or diverges ends the engine: callers get an error that names it,
and no process is left."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from executor_plans import PROMPT, config_of, plan_of

from quire.config.ranks import Rank
from quire.errors import ConfigError, EngineDeadError, RankError
from quire.executor.messages import encode
from quire.executor.multiproc import MultiprocExecutor
from quire.executor.nodes.door import Door
from quire.executor.nodes.messages import Beat, Checked, Hello, Refused
from quire.executor.nodes.node import RankLine
from quire.executor.nodes.remote import RemoteNode

DOOR = cast(Door, SimpleNamespace(watch=lambda: None))


@pytest.fixture
def executor(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[MultiprocExecutor]:
    given: dict[str, Any] = getattr(request, "param", {})
    made = MultiprocExecutor(config_of(model_dir, tensor_parallel_size=2, **given))
    yield made
    processes = [one.process for one in made._ranks.ranks]
    made.shutdown()
    assert all(process.poll() is not None for process in processes)


def fails(executor: MultiprocExecutor) -> str:
    """The error of a step; every later call has the same."""
    executor.submit(plan_of("a", PROMPT))
    with pytest.raises(EngineDeadError) as found:
        executor.collect()
    assert executor.failure() == str(found.value)
    with pytest.raises(EngineDeadError, match="rank"):
        executor.call("check_health")
    return str(found.value)


def test_a_rank_that_is_killed(executor: MultiprocExecutor) -> None:
    os.kill(executor._ranks.ranks[1].process.pid, signal.SIGKILL)
    text = r"rank 1 (part 1 of 2) was killed by signal 9"
    until = time.monotonic() + 60
    while executor.failure() is None and time.monotonic() < until:
        time.sleep(0.05)  # the watching thread notices it without a step
    assert executor.failure() == text


@pytest.mark.parametrize("executor", [{"backend": "cpu"}], indirect=True, ids=["cpu"])
def test_a_rank_that_is_stopped_in_a_step(executor: MultiprocExecutor) -> None:
    """The other rank waits in shared memory, and is freed too."""
    os.kill(executor._ranks.ranks[1].process.pid, signal.SIGSTOP)
    assert fails(executor) == "rank 1 (part 1 of 2) was stopped by a signal (SIGSTOP)"


@pytest.mark.parametrize(
    ("executor", "text"),
    [
        (
            {"worker_cls": "faulty_worker.RaisingWorker"},
            "rank 1 (part 1 of 2) failed: RuntimeError: a bit has flipped",
        ),
        ({"worker_cls": "faulty_worker.SkippingWorker"}, "is at step 2, exchange 0"),
    ],
    indirect=["executor"],
    ids=["raises", "diverges"],
)
def test_a_rank_that_breaks(executor: MultiprocExecutor, text: str) -> None:
    assert text in fails(executor)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tensor_parallel_size": 5}, "the model has 4 query heads.* use at most 4"),
        ({"pipeline_parallel_size": 9}, "can be cut into at most 2 stages"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be a positive whole number"),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            "'uni' runs one rank",
        ),
        ({"distributed_executor_backend": "gpu"}, "use uni, mp or ray"),
    ],
)
def test_impossible_sizes_are_refused_before_loading(
    model_dir: Path, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        config_of(model_dir, **given)


def test_what_a_rank_cannot_load_is_reported(model_dir: Path) -> None:
    config = config_of(model_dir, tensor_parallel_size=2, worker_cls="faulty_worker.NoSuchWorker")
    with pytest.raises(ConfigError, match="NoSuchWorker"):
        MultiprocExecutor(config)


def test_a_process_that_cannot_have_files(model_dir: Path) -> None:
    """The error is the user's to mend, and nothing is left open."""
    config = config_of(model_dir, tensor_parallel_size=2)
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 2, hard))
    try:
        with pytest.raises(ConfigError, match=r"ranks cannot be started: .* Too many open files"):
            MultiprocExecutor(config)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_caller_waits_for_a_machine_that_is_given_up() -> None:
    """A broken link closes no connection, so that a caller would wait for an answer for ever."""
    (ours, theirs), lines = socket.socketpair(), [socket.socketpair() for _ in range(2)]
    control = Connection(theirs.detach())
    control.send_bytes(encode(Hello("host", 1, "version", "")))
    node = RemoteNode(DOOR, 1, Connection(ours.detach()))
    steps, blocks = (Connection(one.detach()) for one, _ in lines)
    node.lines.append(RankLine(Rank(0, 1, 1, 2), steps, blocks))
    waiting = ThreadPoolExecutor(2)
    found = [waiting.submit(one.recv_bytes) for one in (steps, blocks)]
    lines[0][1].sendall(b"\0\0\0\7par")  # a part of a message
    node.kill()
    for one in found:
        assert isinstance(one.exception(5), EOFError | OSError)
    node.end()
    waiting.shutdown()
    control.close()
    for _, end in lines:
        end.close()


@pytest.fixture
def machine() -> Iterator[tuple[RemoteNode, Connection]]:
    """Another machine that has connected, as the engine sees it; and the machine's end."""
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    theirs.send_bytes(encode(Beat()))
    theirs.send_bytes(encode(Hello("host", 1, "version", "")))
    node = RemoteNode(DOOR, 1, ours)
    yield node, theirs
    node.end()
    theirs.close()


def test_a_machine_that_is_frozen_while_it_starts(machine: tuple[RemoteNode, Connection]) -> None:
    """Long before its ranks have to be there."""
    with pytest.raises(RankError, match="node 1 has sent nothing for"):
        machine[0].wait_until_checked()


def test_a_machine_may_take_its_time(machine: tuple[RemoteNode, Connection]) -> None:
    node, theirs = machine
    waiting = ThreadPoolExecutor(1)
    checked = waiting.submit(node.wait_until_checked)
    for _ in range(10):
        theirs.send_bytes(encode(Beat()))
        time.sleep(0.2)
    assert not checked.done()
    theirs.send_bytes(encode(Checked()))
    checked.result(60)
    waiting.shutdown()


@pytest.mark.parametrize(
    ("sent", "kind", "text"),
    [
        ([encode(Refused("no room"))], ConfigError, "node 1: no room"),
        ([encode(Beat("rank 1 was killed"))], RankError, "rank 1 was killed"),
        ([b"nonsense"], RankError, "node 1 has sent an unknown message"),
        ([], RankError, "node 1 has ended"),
    ],
    ids=str,
)
def test_a_machine_that_cannot_start(
    machine: tuple[RemoteNode, Connection], sent: list[bytes], kind: type[Exception], text: str
) -> None:
    node, theirs = machine
    for data in sent:
        theirs.send_bytes(data)
    theirs.close()
    with pytest.raises(kind, match=text):
        node.wait_until_checked()

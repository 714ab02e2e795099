"""`RankProcesses`: starts the processes of an engine's ranks, talks to them, and watches them.

Processes are connected by socket pairs, and the ranks of a stage by memory without a name, so that
nothing is left in the file system however they end. A rank that dies, stops or breaks ends all of
them at once: each caller then gets an error that names the rank.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from quire import errors
from quire.config.ranks import Rank
from quire.config.records import EngineConfig
from quire.errors import BackendError, ConfigError, EngineDeadError, ModelError, RankError
from quire.executor.messages import Answer, Boot, Call, decode_answer, encode
from quire.log import get_logger
from quire.system.child_python import module_command
from quire.system.thread_states import thread_states

logger = get_logger(__name__)

_WATCH_S = 0.1
_STOPPED_S = 0.6
"""A rank that a signal has stopped for so long, while the engine ran, is given up."""
_OTHERS_S = 0.8
"""How long the other ranks have to report the same error as one of them."""
_EXIT_S = 5.0
_RANK_ERROR = RankError.__name__


@dataclass(slots=True, eq=False)
class RankProcess:
    """One rank as the engine sees it."""

    rank: Rank
    process: subprocess.Popen[bytes]
    steps: Connection
    """Calls in the order of steps."""
    blocks: Connection
    """Copies of KV blocks, at any time."""
    blocks_lock: threading.Lock = field(default_factory=threading.Lock)
    stopped_s: float = 0.0


@dataclass(slots=True)
class _Called:
    """A call that is under way."""

    ranks: set[int]
    """Those that were called."""
    answering: int | None
    """The one that answers; None: all of them."""
    found: dict[int, Answer] = field(default_factory=dict)

    @property
    def errors(self) -> dict[int, Answer]:
        """Answers that are errors, by rank."""
        return {rank: answer for rank, answer in self.found.items() if answer.error is not None}

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to wait for. An error may come from all ranks."""
        if any(answer.kind == _RANK_ERROR for answer in self.found.values()):
            return True
        if self.errors or self.answering is None:
            return self.found.keys() == self.ranks
        return self.answering in self.found


class RankProcesses:
    """All ranks of an engine. One caller, but for `copy_blocks`, `failure` and `progress`.

    The watching thread starts the processes, because they die with the thread that did.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Returns when every rank has loaded its part. Raises what prevented it."""
        self._config = config
        self._failure: str | None = None
        self._is_closing = threading.Event()
        self._called: dict[int, _Called] = {}
        """By their numbers, the calls that are under way."""
        self._number = 0
        self.has_new_weights = False
        self._started: Future[list[RankProcess]] = Future()
        self._watching = threading.Thread(target=self._watch, name="quire-ranks", daemon=True)
        self._watching.start()
        self.ranks = self._started.result()
        self._called[0] = _Called({one.rank.number for one in self.ranks}, None)
        try:
            self.receive(0)
        except BaseException:
            self.shutdown()
            raise

    def send(
        self,
        method: str,
        args: list[Any] | Callable[[Rank], list[Any]],
        kwargs: dict[str, Any] | None = None,
        *,
        of_model: bool = False,
        only: int | None = None,
        answers: int | None = None,
    ) -> int:
        """Calls a method on every rank, or on one of them; the number of the call. `args` may
        differ by rank. `answers`: the rank that answers; of others only an error comes."""
        self._raise_failure()
        self._number += 1
        called = self.ranks if only is None else [self.ranks[only]]
        self._called[self._number] = _Called({one.rank.number for one in called}, answers)
        for one in called:
            own = args if isinstance(args, list) else args(one.rank)
            is_silent = answers is not None and one.rank.number != answers
            call = Call(self._number, method, own, kwargs or {}, of_model, is_silent)
            self._send(one, encode(call))
        return self._number

    def receive(self, number: int) -> list[Any]:
        """What the ranks have answered. Raises what a rank raised. An error of some ranks alone
        means that they are no longer in step: it ends all of them."""
        called = self._called[number]
        others_until: float | None = None
        while not called.is_complete:
            if others_until is not None and time.monotonic() > others_until:
                break
            self._take_answers()
            if called.errors and others_until is None:
                others_until = time.monotonic() + (_OTHERS_S if number else 0.0)
        del self._called[number]
        if called.errors:
            raise self._error_of_call(number, called)
        if number:
            self.has_new_weights = any(one.has_new_weights for one in called.found.values())
        return [answer.value for _, answer in sorted(called.found.items())]

    def copy_blocks(self, rank: int, method: str, *args: Any, **kwargs: Any) -> bytes | None:
        """Reads or writes KV blocks of one rank. Any thread."""
        self._raise_failure()
        one = self.ranks[rank]
        try:
            with one.blocks_lock:
                one.blocks.send_bytes(encode(Call(0, method, list(args), kwargs)))
                answer = decode_answer(one.blocks.recv_bytes())
        except (EOFError, OSError):
            raise BackendError(self._failure or f"{one.rank} has ended") from None
        if answer.error is not None:
            raise _error_of(answer, one.rank)
        data: bytes | None = answer.value
        return data

    def failure(self) -> str | None:
        """Why the ranks compute no more. Any thread."""
        return self._failure

    def progress(self) -> int:
        """A number that changes while a rank computes, or waits for a core or a disk. Any
        thread."""
        threads = [state for one in self.ranks for state in thread_states(one.process.pid).values()]
        ticks = sum(round(state.cpu_s * 100) for state in threads)
        if all(state.is_asleep for state in threads):
            return ticks
        return ticks + time.monotonic_ns()

    def shutdown(self) -> None:
        """Ends all processes. Idempotent."""
        self.abandon()
        self._watching.join(2 * _EXIT_S)

    def abandon(self) -> None:
        """As `shutdown`, without waiting."""
        self._is_closing.set()

    def fail(self, cause: str) -> EngineDeadError:
        """Kills every rank; what a caller is to raise."""
        if self._failure is None:
            self._failure = cause
            logger.error("%s", cause)
        for one in self._started.result() if self._started.done() else []:
            one.process.kill()
        return EngineDeadError(self._failure)

    def _error_of_call(self, number: int, called: _Called) -> Exception:
        """What the errors of a call mean."""
        rank_number, answer = min(called.errors.items(), key=lambda one: one[1].kind == _RANK_ERROR)
        rank = self.ranks[rank_number].rank
        is_alone = len(called.errors) < len(called.ranks) or answer.kind == _RANK_ERROR
        if number == 0 or not is_alone:
            return _error_of(answer, rank)
        time.sleep(_WATCH_S)
        for one in self.ranks:  # the cause, where the others only notice that it has ended
            if one.process.poll() is not None:
                return self.fail(self._end_of(one))
        return self.fail(f"{rank} failed: {answer.error}")

    def _take_answers(self) -> None:
        """Reads what ranks have sent, waiting for a moment. Raises EngineDeadError."""
        self._raise_failure()
        by_connection = {one.steps: one for one in self.ranks}
        for connection in wait(list(by_connection), _WATCH_S):
            one = by_connection[connection]  # type: ignore[index]
            try:
                answer = decode_answer(one.steps.recv_bytes())
            except (EOFError, OSError):
                raise self.fail(self._end_of(one)) from None
            called = self._called.get(answer.number)
            if called is not None:
                called.found[one.rank.number] = answer
            elif answer.error is not None:
                raise self.fail(f"{one.rank} failed: {answer.error}")

    def _send(self, one: RankProcess, data: bytes) -> None:
        try:
            one.steps.send_bytes(data)
        except OSError:
            raise self.fail(self._end_of(one)) from None

    def _end_of(self, one: RankProcess) -> str:
        """How a rank ended whose connection has closed."""
        try:
            code = one.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"{one.rank} has closed its connection"
        if code < 0:
            return f"{one.rank} was killed by signal {-code}"
        return f"{one.rank} ended with exit code {code}"

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        if self._is_closing.is_set():
            raise BackendError("the model is closed")

    def _watch(self) -> None:
        """The watching thread, from the start of the processes to their end."""
        ranks: list[RankProcess] = []
        try:
            ranks = _start(self._config)
            self._started.set_result(ranks)
        except BaseException as error:
            self._started.set_exception(error)
            return
        while not self._is_closing.wait(_WATCH_S) and self._failure is None:
            for one in ranks:
                if one.process.poll() is not None:
                    self.fail(self._end_of(one))
                states = thread_states(one.process.pid, only=(one.process.pid,)).values()
                is_stopped = any(state.is_stopped for state in states)
                one.stopped_s = one.stopped_s + _WATCH_S if is_stopped else 0.0
                if one.stopped_s > _STOPPED_S:
                    self.fail(f"{one.rank} was stopped by a signal (SIGSTOP)")
        self._is_closing.wait()
        _end(ranks)


def _start(config: EngineConfig) -> list[RankProcess]:
    """Starts all ranks, connected to each other. The ends of sockets that a rank has are closed
    here, so that a rank notices the end of another."""
    ranks = config.parallel.local_ranks
    generation = secrets.randbits(63)
    ends: dict[Rank, Boot] = {}
    started: list[RankProcess] = []
    cores = _cores_of_ranks(config, len(ranks))
    shared = [os.memfd_create("quire") for _ in range(config.parallel.pipeline_parallel_size)]
    for rank in ranks:
        device = replace(config.device, cores=cores[rank.number])
        own = replace(config, device=device, model=replace(config.model, logits_processors=()))
        fd = shared[rank.stage] if config.device.backend == "cpu" and rank.tensor_size > 1 else -1
        ends[rank] = Boot(
            config=own, number=rank.number, generation=generation, peers={}, before=None,
            after=None, shared_fd=fd,
        )  # fmt: skip
    for one in ranks:
        for other in ranks[one.number + 1 :]:
            _connect(one, ends[one], other, ends[other])
    try:
        for rank in ranks:
            started.append(_spawn(rank, ends[rank]))
    except OSError as error:
        _end(started)
        raise ConfigError(f"the process of a rank cannot be started: {error}") from None
    finally:
        for boot in ends.values():
            for fd in _files(boot):
                if fd not in shared:
                    os.close(fd)
        for fd in shared:
            os.close(fd)
    return started


def _connect(one: Rank, ends: Boot, other: Rank, others: Boot) -> None:
    is_stage = one.stage == other.stage
    is_next = one.stage + 1 == other.stage and one.tensor == other.tensor
    if not (is_stage or is_next):
        return
    left, right = (end.detach() for end in socket.socketpair())
    if is_stage:
        ends.peers[other.number], others.peers[one.number] = left, right
    else:
        ends.after, others.before = left, right


def _files(boot: Boot) -> list[int]:
    found = [*boot.peers.values(), boot.before, boot.after, boot.shared_fd]
    return [fd for fd in found if fd is not None and fd >= 0]


def _spawn(rank: Rank, boot: Boot) -> RankProcess:
    steps, own_steps = socket.socketpair()
    blocks, own_blocks = socket.socketpair()
    with own_steps, own_blocks:
        process = subprocess.Popen(
            module_command(
                "quire.executor.rank_main",
                str(own_steps.fileno()),
                str(own_blocks.fileno()),
                str(os.getpid()),
            ),
            stdin=subprocess.DEVNULL,
            pass_fds=(own_steps.fileno(), own_blocks.fileno(), *_files(boot)),
            start_new_session=True,
        )
    made = RankProcess(rank, process, Connection(steps.detach()), Connection(blocks.detach()))
    made.steps.send_bytes(encode(boot))
    return made


def _cores_of_ranks(config: EngineConfig, num_ranks: int) -> list[tuple[int, ...] | None]:
    """The cores that were named, divided among the ranks."""
    cores = config.device.cores
    if cores is None or num_ranks == 1 or len(cores) < num_ranks:
        return [cores] * num_ranks
    bounds = [len(cores) * part // num_ranks for part in range(num_ranks + 1)]
    return [tuple(cores[a:b]) for a, b in itertools.pairwise(bounds)]


def _end(ranks: Sequence[RankProcess]) -> None:
    """Ranks end when their connections close; those that do not are killed."""
    for one in ranks:
        one.steps.close()
        one.blocks.close()
    until = time.monotonic() + _EXIT_S
    for one in ranks:
        try:
            one.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def _error_of(answer: Answer, rank: Rank) -> Exception:
    """The error that a rank has reported, as the class that it had there."""
    kind = getattr(errors, answer.kind, None)
    text = answer.error or ""
    if answer.kind == "ValueError":
        return ValueError(text)
    if isinstance(kind, type) and issubclass(kind, ConfigError | ModelError):
        return kind(text)
    return BackendError(text if rank.world_size == 1 else f"{rank}: {text}")

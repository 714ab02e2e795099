"""`RankProcesses`: talks to the processes of an engine's ranks, and watches them.

A rank that dies, stops or breaks ends all of them at once: each caller then gets an error that
names the rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from quire import errors
from quire.config.ranks import Rank
from quire.config.records import EngineConfig
from quire.errors import (
    BackendError,
    ConfigError,
    DeviceError,
    EngineDeadError,
    ModelError,
    RankError,
)
from quire.executor.messages import Answer, Call, decode_answer, encode
from quire.executor.nodes.gather import start_nodes
from quire.executor.nodes.node import EXIT_S, Node, RankLine
from quire.log import get_logger
from quire.system.at_exit import FORKED, in_forked_child

logger = get_logger(__name__)

_WATCH_S = 0.1
_OTHERS_S = 0.8
"""Seconds in which the other ranks must report the same error as one of them."""
_LAST_ERRORS = {RankError.__name__, DeviceError.__name__}
"""Errors after which a rank computes no more."""
StartNodes = Callable[[EngineConfig], list[Node]]


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
        if any(answer.kind in _LAST_ERRORS for answer in self.found.values()):
            return True
        if self.errors or self.answering is None:
            return self.found.keys() == self.ranks
        return self.answering in self.found


class RankProcesses:
    """All ranks of an engine. One caller, but for `call_at_once`, `failure` and `progress`.

    The watching thread starts the processes, because they die with the thread that did.
    """

    def __init__(self, config: EngineConfig, start: StartNodes = start_nodes) -> None:
        """Returns when every rank has loaded its part. Raises what prevented it."""
        self._config = config
        self._start_nodes = start
        self._failure: str | None = None
        in_forked_child(self, RankProcesses._mark_forked)
        self._is_closing = threading.Event()
        self._called: dict[int, _Called] = {}
        """By their numbers, the calls that are under way."""
        self._number = 0
        self.has_new_weights = False
        self.keep_tokens = False
        """Whether the models of all ranks do (`StepModel.keeps_tokens`)."""
        self._started: Future[list[Node]] = Future()
        self._watching = threading.Thread(target=self._watch, name="quire-ranks", daemon=True)
        self._watching.start()
        self._nodes = self._started.result()
        lines = [line for node in self._nodes for line in node.lines]
        self.ranks = sorted(lines, key=lambda line: line.rank.number)
        self._called[0] = _Called({one.rank.number for one in self.ranks}, None)
        try:
            self.keep_tokens = all(self.receive(0))
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
        """Return the answers of the ranks. Raises the error that a rank raised. An error of only
        some ranks means that they are no longer in step: it ends all of them."""
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

    def call_at_once(self, rank: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of one rank's worker that may run while a step computes: copies of KV
        blocks, and loads of adapters. Any thread. Raises what the rank raised."""
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
        return answer.value

    def failure(self) -> str | None:
        """Why the ranks compute no more. Any thread."""
        return self._failure

    def progress(self) -> int:
        """A number that changes while a rank computes, or waits for a core or a disk. Any
        thread."""
        return sum(node.progress() for node in self._nodes)

    def shutdown(self) -> None:
        """Ends all processes. Idempotent."""
        self.abandon()
        self._watching.join(2 * EXIT_S)

    def abandon(self) -> None:
        """Shut down without waiting."""
        self._is_closing.set()

    def fail(self, cause: str) -> EngineDeadError:
        """Kills every rank; what a caller is to raise."""
        if self._failure is None:
            self._failure = cause
            logger.error("%s", cause)
        for node in self._nodes:
            node.kill()
        return EngineDeadError(self._failure)

    def _mark_forked(self) -> None:
        self._failure = FORKED  # what a copy would send, or read, belongs to the other process

    def _error_of_call(self, number: int, called: _Called) -> Exception:
        """Return the exception for the errors of a call."""
        rank_number, answer = min(
            called.errors.items(), key=lambda one: one[1].kind == RankError.__name__
        )
        rank = self.ranks[rank_number].rank
        is_alone = number > 0 and len(called.errors) < len(called.ranks)
        if answer.kind not in _LAST_ERRORS and not is_alone:
            return _error_of(answer, rank)
        time.sleep(_WATCH_S)
        for node in self._nodes:  # the cause, where the others only notice that a rank has ended
            if (cause := node.ended()) is not None:
                return self.fail(cause)
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

    def _send(self, one: RankLine, data: bytes) -> None:
        try:
            one.steps.send_bytes(data)
        except OSError:
            raise self.fail(self._end_of(one)) from None

    def _end_of(self, one: RankLine) -> str:
        """Return the cause of the end of a rank whose connection has closed."""
        [node] = (node for node in self._nodes if one in node.lines)
        return node.end_of(one.rank)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        if self._is_closing.is_set():
            raise BackendError("the model is closed")

    def _watch(self) -> None:
        """The watching thread, from the start of the processes to their end."""
        try:
            nodes = self._start_nodes(self._config)
        except OSError as error:
            text = f"the processes of the ranks cannot be started: {error}"
            self._started.set_exception(ConfigError(text))
            return
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._nodes = nodes
        self._started.set_result(nodes)
        while not self._is_closing.wait(_WATCH_S) and self._failure is None:
            for node in nodes:
                if (cause := node.look()) is not None:
                    self.fail(cause)
        self._is_closing.wait()
        for node in nodes:
            node.end()


def _error_of(answer: Answer, rank: Rank) -> Exception:
    """The error that a rank has reported, as the class that it had there."""
    kind = getattr(errors, answer.kind, None)
    text = answer.error or ""
    if answer.kind == "ValueError":
        return ValueError(text)
    if isinstance(kind, type) and issubclass(kind, ConfigError | ModelError):
        return kind(text)
    return BackendError(text if rank.world_size == 1 else f"{rank}: {text}")

"""`OnlineRequests`: the requests of an `AsyncLLM`, from admission to the ends of their streams.

Called by `AsyncLLM`, and by the server, which admits a request's prompts together and hands them
over bit by bit. The records are the output processor's. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient
from quire.errors import QuireError
from quire.frontend.inputs.input_processor import EngineInput
from quire.frontend.observers.admission import AdmissionControl, QueueFullError
from quire.frontend.observers.engine_metrics import EngineMetrics
from quire.frontend.observers.observer import RequestObserver
from quire.frontend.online.loop_binding import LoopBinding
from quire.frontend.online.request_stream import RequestStream
from quire.frontend.output_processor import OutputProcessor
from quire.protocol import EngineCoreOutputs, EngineCoreRequest
from quire.system.deferred_signals import with_signals_deferred
from quire.system.turn_queue import TurnQueue
from quire.tokenizer import Tokenizer

_WOKEN_AT_ONCE = 16
"""Readers of outputs that run in one turn of the event loop."""


class RequestsOwner(Protocol):
    """`AsyncLLM`, as far as it is used here."""

    def on_bound(self, loop: asyncio.AbstractEventLoop) -> None:
        """Another event loop is served from now on."""


class OnlineRequests:
    """Everyone who waits for outputs, each with a stream.

    Invariant: an admitted request counts against admission until its stream is closed or done.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        client: EngineCoreClient,
        observers: Sequence[RequestObserver],
        owner: Callable[[], RequestsOwner | None],
    ) -> None:
        """`observers` are told besides admission and metrics. `owner` refers weakly to what is told
        of each event loop that is served from now on; streams keep it alive."""
        self.metrics = EngineMetrics(config)
        self.binding = LoopBinding(self, self._on_loop_bound)
        self._owner = owner
        self._admission = AdmissionControl(config.scheduler)
        self.observers = [self._admission, self.metrics, *observers]
        self.outputs = OutputProcessor(tokenizer, config.scheduler.stream_interval, self.observers)
        self._client = client
        self._wakeups = TurnQueue(_WOKEN_AT_ONCE)

    def __bool__(self) -> bool:
        """Whether anything is in flight."""
        return self.outputs.has_unfinished_requests()

    @property
    def num_unfinished(self) -> int:
        """Core requests in flight."""
        return self.outputs.get_num_unfinished_requests()

    def check_admission(self, num_requests: int, num_tokens: int = 0) -> None:
        """Raises CapacityError if the queue has no room for that many more."""
        with self.binding.bound():
            self._check_admission(num_requests, num_tokens)

    def admit(
        self, requests: Sequence[EngineInput], wake_up: asyncio.Event | None = None
    ) -> list[RequestStream]:
        """Streams of requests that begin next, or are closed, all or none. `wake_up` is set when
        one of them has something to take. Raises CapacityError."""
        cores = [core for request in requests for core in request.core_requests]
        with self.binding.bound():
            self._check_admission(len(cores), sum(len(core.prompt_token_ids) for core in cores))
            return self._opened(requests, wake_up)

    def let_in(
        self, requests: Sequence[EngineInput], wake_up: asyncio.Event | None = None
    ) -> list[RequestStream]:
        """As `admit`, but never refuses: requests that follow from one that was admitted."""
        with self.binding.bound():
            return self._opened(requests, wake_up)

    @with_signals_deferred
    def start(self, request: EngineInput, *, follows: bool = False) -> RequestStream:
        """Admits a request and hands it over; `follows`: it follows from one that was admitted.
        Raises CapacityError, EngineDeadError."""
        [stream] = self.let_in([request]) if follows else self.admit([request])
        try:
            self.begin(stream)
            for core_request in request.core_requests:
                self.hand_over(core_request)
        except BaseException:
            stream.close()
            raise
        return stream

    def begin(self, stream: RequestStream) -> None:
        """The core requests of an admitted request, which has not ended, are handed over next."""
        self.outputs.begin(stream.record)

    def hand_over(self, core_request: EngineCoreRequest) -> None:
        """Hands over one of the `n` of a request that has begun. Raises EngineDeadError."""
        self._client.add_request(core_request)

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        """What a step brought. The streams are filled here; their readers run afterwards, some at
        a time."""
        done = self.outputs.process_outputs(outputs)
        if done.aborts:
            self._abort_in_core(done.aborts)

    @with_signals_deferred
    def close(self, streams: Iterable[RequestStream]) -> None:
        """Ends what has not ended of several requests, with one message to the core."""
        self._abort_in_core(
            self.outputs.abandon([stream.record for stream in streams if stream.end()])
        )

    def tell_sleep(self, level: int | None) -> None:
        """The engine sleeps at this level; None: it is awake."""
        for observer in self.observers:
            observer.on_sleep(level)

    def ids(self) -> list[str]:
        """The users' ids of all requests in flight."""
        return [record.input.request_id for record in self.outputs.records()]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends all requests of these ids of users; their streams get a last output."""
        with self.binding.bound():
            self._abort_in_core(self.outputs.abort_requests(request_ids))

    def abort_streams(self, streams: Iterable[RequestStream]) -> None:
        """The same for these requests."""
        with self.binding.bound():
            self._abort_in_core(self.outputs.abort([stream.record for stream in streams]))

    def abort_all(self) -> None:
        """Ends every request."""
        with self.binding.bound():
            self._abort_in_core(self.outputs.abort(self.outputs.records()))

    def fail_all(self, error: QuireError) -> None:
        """Tells everyone who waits, with an error of their own each."""
        self._abort_in_core(self.outputs.fail(error))

    def abandon_all(self) -> None:
        """Ends every request without a word, where those who waited are gone with their loop."""
        self._abort_in_core(self.outputs.abandon(self.outputs.records()))

    def _on_loop_bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wakeups.clear()
        owner = self._owner()
        if owner is not None:
            owner.on_bound(loop)

    def _opened(
        self, requests: Sequence[EngineInput], wake_up: asyncio.Event | None
    ) -> list[RequestStream]:
        owner = self._owner()
        return [
            RequestStream(self.outputs.admit(request), self.close, self._wakeups, wake_up, owner)
            for request in requests
        ]

    def _check_admission(self, num_requests: int, num_tokens: int) -> None:
        try:
            self._admission.check(num_requests, num_tokens)
        except QueueFullError as error:
            for observer in self.observers:
                observer.on_rejected(error.reason)
            raise

    def _abort_in_core(self, core_ids: list[str]) -> None:
        if core_ids and self._client.health().state != "dead":
            self._client.abort_requests(core_ids)

"""`OnlineRequests`: the requests of an `AsyncLLM`, from admission to the ends of their streams.

Called by `AsyncLLM`, and by the server, which admits all prompts of a request at once and passes
them to the core in parts. The output processor owns the records. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient
from quire.errors import QuireError
from quire.frontend.arguments import EngineInput
from quire.frontend.observers.admission import AdmissionControl, QueueFullError
from quire.frontend.observers.engine_metrics import EngineMetrics
from quire.frontend.observers.observer import RequestObserver
from quire.frontend.online.request_stream import LoopBinding, RequestStream
from quire.frontend.output_processor import OutputProcessor
from quire.protocol import EngineCoreOutputs, EngineCoreRequest
from quire.system.deferred_signals import with_signals_deferred
from quire.system.turn_queue import TurnQueue
from quire.tokenizer import Tokenizer

_WOKEN_AT_ONCE = 16
"""Maximum number of readers of outputs that run per iteration of the event loop."""


class RequestsOwner(Protocol):
    """The methods of `AsyncLLM` that are used here."""

    def on_bound(self, loop: asyncio.AbstractEventLoop) -> None:
        """Another event loop is served from now on."""


class OnlineRequests:
    """All requests in flight, each with a stream of outputs.

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
        """`observers`: in addition to admission and metrics. `owner`: a weak reference to the
        object whose `on_bound` is called; streams keep it alive."""
        self.metrics = EngineMetrics(config)
        self.binding = LoopBinding(self, self._on_loop_bound)
        self._owner = owner
        self._admission = AdmissionControl(config.scheduler, lambda: client.num_engines)
        self.observers = [self._admission, self.metrics, *observers]
        self.outputs = OutputProcessor(tokenizer, config.scheduler.stream_interval, self.observers)
        self._client = client
        self._wakeups = TurnQueue(_WOKEN_AT_ONCE)

    def __bool__(self) -> bool:
        """Whether any request is in flight."""
        return self.outputs.has_unfinished_requests()

    @property
    def are_lost(self) -> bool:
        """Whether the engine has died."""
        return self._client.health().state == "dead"

    @property
    def num_unfinished(self) -> int:
        """Number of core requests in flight."""
        return self.outputs.get_num_unfinished_requests()

    def check_admission(self, num_requests: int, num_tokens: int = 0) -> None:
        """Raises CapacityError if the queue has no room for these requests and prompt tokens."""
        with self.binding.bound():
            self._check_admission(num_requests, num_tokens)

    def expected_wait_s(self) -> float:
        """Seconds that a request which would arrive now waits for its first token because of those
        before it. Any thread."""
        return self._admission.expected_wait_s()

    def admit(
        self, requests: Sequence[EngineInput], wake_up: asyncio.Event | None = None
    ) -> list[RequestStream]:
        """Admit all requests or none; the caller must begin or close each stream. `wake_up` is set
        when one of the streams has an output. Raises CapacityError."""
        cores = [core for request in requests for core in request.core_requests]
        with self.binding.bound():
            num_tokens = sum(len(core.prompt_token_ids) for core in cores)
            num_bytes = sum(one.num_image_bytes * len(one.core_requests) for one in requests)
            self._check_admission(len(cores), num_tokens, num_bytes)
            return self._opened(requests, wake_up)

    def let_in(
        self, requests: Sequence[EngineInput], wake_up: asyncio.Event | None = None
    ) -> list[RequestStream]:
        """Like `admit`, but without limits: for requests that continue an admitted one."""
        with self.binding.bound():
            return self._opened(requests, wake_up)

    @with_signals_deferred
    def start(self, request: EngineInput, *, follows: bool = False) -> RequestStream:
        """Admit a request and pass it to the core. `follows`: it continues an admitted request.
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
        """Begin an admitted request, before its core requests are handed over."""
        self.outputs.begin(stream.record)

    def hand_over(self, core_request: EngineCoreRequest) -> None:
        """Pass one of the `n` core requests of a begun request to the core. Raises
        EngineDeadError."""
        self._client.add_request(core_request)

    def taking(self, loop: asyncio.AbstractEventLoop) -> Callable[[EngineCoreOutputs], None]:
        """A function that takes outputs while `loop` is bound; it does not keep this object
        alive."""
        this = weakref.ref(self)

        def take(outputs: EngineCoreOutputs) -> None:
            requests = this()
            # Otherwise the outputs belong to requests that have ended.
            if requests is not None and requests.binding.loop is loop:
                requests.take_outputs(outputs)

        return take

    def take_outputs(self, outputs: EngineCoreOutputs) -> None:
        """Process the outputs of a step. Streams are filled here; their readers run afterwards, a
        limited number per iteration of the loop."""
        done = self.outputs.process_outputs(outputs)
        if done.aborts:
            self._abort_in_core(done.aborts)

    @with_signals_deferred
    def close(self, streams: Iterable[RequestStream]) -> None:
        """End unfinished requests of these streams, with one message to the core."""
        self._abort_in_core(
            self.outputs.abandon([stream.record for stream in streams if stream.end()])
        )

    def tell_sleep(self, level: int | None) -> None:
        """Notify the observers of the sleep level; None: the engine is awake."""
        for observer in self.observers:
            observer.on_sleep(level)

    def ids(self) -> list[str]:
        """The users' ids of all requests in flight."""
        return [record.input.request_id for record in self.outputs.records()]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Abort all requests with these user ids; their streams receive a last output."""
        with self.binding.bound():
            self._abort_in_core(self.outputs.abort_requests(request_ids))

    def abort_streams(self, streams: Iterable[RequestStream]) -> None:
        """Abort the requests of these streams; the streams receive a last output."""
        with self.binding.bound():
            self._abort_in_core(self.outputs.abort([stream.record for stream in streams]))

    def abort_all(self) -> None:
        """Abort all requests."""
        with self.binding.bound():
            self._abort_in_core(self.outputs.abort(self.outputs.records()))

    def fail(self, error: QuireError, core_ids: Iterable[str] | None = None) -> None:
        """End all requests, or those with these core requests; each caller receives its own copy of
        the error."""
        self._abort_in_core(self.outputs.fail(error, core_ids))

    def abandon_all(self) -> None:
        """End all requests without notifying their callers, whose loop is closed."""
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

    def _check_admission(
        self, num_requests: int, num_tokens: int, num_image_bytes: int = 0
    ) -> None:
        try:
            self._admission.check(num_requests, num_tokens, num_image_bytes)
        except QueueFullError as error:
            for observer in self.observers:
                observer.on_rejected(error.reason)
            raise

    def _abort_in_core(self, core_ids: list[str]) -> None:
        if core_ids and not self.are_lost:
            self._client.abort_requests(core_ids)

"""`InFlight`: the requests of an `AsyncLLM` that have not ended, and everyone who is told of them.

Knows streams, admission, metrics and the output processor; not where the engine loop lives, nor
how it is doing. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

from quire.config import EngineConfig
from quire.errors import EngineDeadError
from quire.frontend.input_processor import EngineInput
from quire.frontend.online.admission import AdmissionControl, QueueFullError
from quire.frontend.online.request_stream import RequestStream
from quire.frontend.output_processor import OutputProcessor, Sink
from quire.frontend.stat_logger import LoggingStatLogger
from quire.metrics import EngineMetrics
from quire.metrics.tracing import RequestTracer
from quire.protocol import EngineCoreOutputs
from quire.tokenizer import Tokenizer


class InFlight:
    """Streams by the internal id of their request, which is unique; users' ids need not be.

    Invariant: a stream is here until it is done. Its core requests count against admission from
    `admit` until then.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        abort_in_core: Callable[[list[str]], None],
        tracer: RequestTracer | None = None,
    ) -> None:
        """`abort_in_core` tells the core to end core requests."""
        self.metrics = EngineMetrics(config)
        self.output_processor = OutputProcessor(tokenizer, config.scheduler.stream_interval)
        self._admission = AdmissionControl(config.scheduler)
        self._stat_logger = LoggingStatLogger(config) if config.observability.log_stats else None
        self._abort_in_core = abort_in_core
        self._tracer = tracer
        self._streams: dict[str, RequestStream] = {}

    def __bool__(self) -> bool:
        return bool(self._streams)

    def check_admission(self, num_requests: int, num_tokens: int) -> None:
        """Raises CapacityError if the queue has no room for that many more."""
        try:
            self._admission.check(num_requests, num_tokens)
        except QueueFullError as error:
            self.metrics.on_rejected(error.reason)
            raise

    def admit(self, requests: Sequence[EngineInput]) -> None:
        """Counts requests that will be added, all or none. Raises CapacityError."""
        cores = [core for request in requests for core in request.core_requests]
        self.check_admission(len(cores), sum(len(core.prompt_token_ids) for core in cores))
        for core in cores:
            num_tokens = len(core.prompt_token_ids)
            self._admission.admit(core.request_id, num_tokens, core.arrival_time)

    def release(self, requests: Sequence[EngineInput]) -> None:
        """Takes back `admit` for requests that were not added after all."""
        now = time.time()
        for request in requests:
            for core in request.core_requests:
                self._admission.on_end(core.request_id, now)

    def add(self, request: EngineInput, news: asyncio.Event | None) -> RequestStream:
        """A stream for an admitted request that is about to be handed to the core."""
        internal_id = request.core_requests[0].request_id
        stream = RequestStream(
            request.request_id,
            request.params.output_kind,
            lambda: self.abort([internal_id]),
            news,
        )
        sink: Sink = stream.put
        if self._tracer is not None:
            sink = self._tracer.tracing(
                request.request_id, request.params, request.trace_headers, sink
            )
        self.output_processor.add_request(
            dataclasses.replace(request, request_id=internal_id), sink
        )
        self._streams[internal_id] = stream
        self.metrics.on_added(request.core_requests)
        return stream

    def on_outputs(self, outputs: EngineCoreOutputs) -> None:
        """What a step brought. The streams are filled here; their readers run afterwards."""
        done = self.output_processor.process_outputs(outputs)
        if done.aborts:
            self._abort_in_core(done.aborts)
        self.metrics.on_outputs(outputs, done.aborts)
        self._account(outputs, done.aborts)
        if self._stat_logger is not None:
            self._stat_logger.record(
                outputs.stats, done.num_prompt_tokens, done.num_generation_tokens
            )
            self._stat_logger.log_if_due()

    def abort_users(self, request_ids: Iterable[str]) -> None:
        """Ends all requests of these ids of users; their streams get a last output."""
        wanted = set(request_ids)
        self.abort([key for key, one in self._streams.items() if one.request_id in wanted])

    def close(self, streams: Iterable[RequestStream]) -> None:
        """Closes streams together: their requests end with one message to the core."""
        closed = {id(stream) for stream in streams if stream.end()}
        if closed:
            self.abort([key for key, one in self._streams.items() if id(one) in closed])

    def abort_all(self) -> None:
        """Ends every request."""
        self.abort(list(self._streams))

    def abort(self, internal_ids: list[str]) -> None:
        """Ends requests by their internal ids; unknown ones mean nothing."""
        core_ids = self.output_processor.abort_requests(internal_ids)
        now = time.time()
        self.metrics.on_aborted(core_ids, now)
        for core_id in core_ids:
            self._admission.on_end(core_id, now)
        if core_ids:
            self._abort_in_core(core_ids)
        for internal_id in internal_ids:
            stream = self._streams.get(internal_id)
            if stream is not None and stream.is_done:
                del self._streams[internal_id]

    def fail_all(self, error: EngineDeadError) -> None:
        """Tells everyone who waits, with an error of their own each."""
        streams = list(self._streams.values())
        for stream in streams:
            stream.fail(EngineDeadError(str(error)))
        self.abort_all()

    def abandon_all(self) -> None:
        """Ends every request without a word, where those who waited are gone with their loop."""
        for stream in self._streams.values():
            stream.is_done = True
        self.abort_all()

    def log_stats(self) -> None:
        """Logs the statistics line now, if there is one."""
        if self._stat_logger is not None:
            self._stat_logger.log()

    def _account(self, outputs: EngineCoreOutputs, stopped_ids: list[str]) -> None:
        """Tells admission who got a first token, and who is gone."""
        ended = list(stopped_ids)
        ended += [one.request_id for one in outputs.outputs if one.finish_reason is not None]
        begun = [one.request_id for one in outputs.outputs if one.new_token_ids]
        self._admission.on_step(begun, outputs.timestamp)
        for request_id in ended:
            self._admission.on_end(request_id, outputs.timestamp)
        if not ended:
            return
        for key in [key for key, stream in self._streams.items() if stream.is_done]:
            del self._streams[key]

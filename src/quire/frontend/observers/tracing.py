"""`RequestTracer`: a span `llm_request` for each finished request, sent by OpenTelemetry.

An observer of the output processor, where an endpoint was given. The packages are an extra
(`quire[otel]`) and are imported only then. Names and meanings of the attributes are vLLM's;
everything about the sending can be set by the `OTEL_*` variables that the SDK reads.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quire import env
from quire.config.records import EngineConfig
from quire.errors import ConfigError, quoted
from quire.frontend.completion_state import CompletionState
from quire.frontend.observers.observer import RequestObserver
from quire.frontend.request_record import RequestRecord
from quire.system.at_exit import close_at_exit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_FLUSH_S = 2.0
_HTTP_PORT = 4318


class RequestTracer(RequestObserver):
    """Makes spans on the event loop and leaves the sending to a thread of the SDK.

    A request never waits for it: the queue between the two is bounded (OTEL_BSP_MAX_QUEUE_SIZE),
    and what it has no room for is dropped.
    """

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._tracer = provider.get_tracer("quire")
        self._model = model
        self._ending: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._flushing = threading.Thread(
            target=_flush_at_the_end, args=(provider, self._ending), daemon=True
        )
        self._flushing.start()  # no thread can be started any more while the process ends
        close_at_exit(self, RequestTracer.close)
        weakref.finalize(self, self._ending.put, None).atexit = False

    @classmethod
    def to_endpoint(cls, endpoint: str, model: str) -> RequestTracer:
        """Sends to an OTLP endpoint. Raises ConfigError if the packages are not installed."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            exporter = _exporter(endpoint)
        except ImportError as error:
            raise ConfigError(
                f"otlp_traces_endpoint needs OpenTelemetry ({error}); "
                "install it with `pip install 'quire[otel]'`"
            ) from None
        named = "OTEL_SERVICE_NAME" in os.environ
        resource = Resource.create({} if named else {"service.name": "quire"})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider, model)

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        del completion, now
        if not record.num_open:
            self._make_span(record)

    def close(self) -> None:
        """Sends what is left, for two seconds at most: no collector keeps a process from ending.
        Called by an engine that is shut down, otherwise at the end of the process."""
        self._ending.put(None)
        self._flushing.join(_FLUSH_S)

    def _make_span(self, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        stats, headers = record.stats(), record.input.trace_headers
        parent = TraceContextTextMapPropagator().extract(headers) if headers else None
        span = self._tracer.start_span(
            "llm_request",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(record, self._model),
            start_time=_nanoseconds(stats.arrival_time),
        )
        if record.error is not None:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(_nanoseconds(max(stats.last_token_ts, stats.arrival_time)))


def make_tracer(config: EngineConfig) -> RequestTracer | None:
    """A tracer, if an endpoint was given. Raises ConfigError if the packages are not installed."""
    endpoint = config.observability.otlp_traces_endpoint
    if endpoint is None:
        return None
    return RequestTracer.to_endpoint(endpoint, config.model.served_model_name[0])


def _flush_at_the_end(provider: TracerProvider, ending: queue.SimpleQueue[None]) -> None:
    ending.get()
    provider.shutdown()


def _attributes(record: RequestRecord, model: str) -> dict[str, Any]:
    """vLLM's names. Times in seconds; those of a phase that was never reached are left out."""
    stats, params = record.stats(), record.input.params
    attributes: dict[str, Any] = {
        "gen_ai.response.model": model,
        "gen_ai.request.id": record.input.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.num_sequences": len(record.completions),
        "gen_ai.usage.prompt_tokens": record.num_prompt_tokens,
        "gen_ai.response.finish_reasons": [one.finish_reason or "" for one in record.completions],
    }
    if params.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = params.max_tokens
    if not stats.num_generation_tokens:
        return {**attributes, "gen_ai.usage.completion_tokens": 0}
    return {
        **attributes,
        "gen_ai.usage.completion_tokens": stats.num_generation_tokens,
        "gen_ai.latency.time_to_first_token": stats.first_token_latency,
        "gen_ai.latency.e2e": stats.last_token_ts - stats.arrival_time,
        "gen_ai.latency.time_in_queue": stats.scheduled_ts - stats.queued_ts,
        "gen_ai.latency.time_in_model_prefill": stats.first_token_ts - stats.scheduled_ts,
        "gen_ai.latency.time_in_model_decode": stats.last_token_ts - stats.first_token_ts,
        "gen_ai.latency.time_in_model_inference": stats.last_token_ts - stats.scheduled_ts,
    }


def _exporter(endpoint: str) -> SpanExporter:
    """gRPC as in vLLM, unless OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or the URL speak for HTTP."""
    try:
        parts = urlsplit(endpoint)
        speaks_http = parts.path.strip("/") != "" or parts.port == _HTTP_PORT
    except ValueError as error:
        raise ConfigError(
            f"otlp_traces_endpoint={quoted(endpoint)} is no URL: {error}; try http://localhost:4317"
        ) from None
    protocol = env.otlp_protocol() or ("http/protobuf" if speaks_http else "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter(endpoint, insecure=parts.scheme != "https")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http

        return by_http.OTLPSpanExporter(endpoint)
    raise ConfigError(
        f"the OTLP protocol {protocol!r} is not known; use grpc or http/protobuf in "
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    )


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

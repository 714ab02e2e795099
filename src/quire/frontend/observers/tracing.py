"""`RequestTracer`: exports a span `llm_request` for each finished request by OpenTelemetry.

An observer of the output processor, used if an endpoint is configured. The packages are an extra
(`quire-engine[otel]`) and are imported only then. Names and meanings of the attributes are vLLM's;
the export is configured by the `OTEL_*` variables that the SDK reads.
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
    """Creates spans on the event loop; a thread of the SDK exports them.

    Requests never wait for the export: its queue is bounded (OTEL_BSP_MAX_QUEUE_SIZE), and spans
    that do not fit are dropped.
    """

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._tracer = provider.get_tracer("quire")
        self._model = model
        self._ending: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._flushing = threading.Thread(
            target=_flush_at_the_end, args=(provider, self._ending), daemon=True
        )
        self._flushing.start()  # now, because no thread can be started while the process ends
        close_at_exit(self, RequestTracer.close)
        weakref.finalize(self, self._ending.put, None).atexit = False

    @classmethod
    def to_endpoint(cls, endpoint: str, model: str) -> RequestTracer:
        """Create a tracer for an OTLP endpoint. Raises ConfigError if the packages are not
        installed."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            exporter = _exporter(endpoint)
        except ImportError as error:
            raise ConfigError(
                f"otlp_traces_endpoint requires OpenTelemetry ({error}); "
                "install it with `pip install 'quire-engine[otel]'`"
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
        """Export the remaining spans, for two seconds at most, so that no collector keeps a process
        alive. Called at the engine's shutdown, or at the end of the process."""
        self._ending.put(None)
        self._flushing.join(_FLUSH_S)

    def _make_span(self, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        stats, headers = record.stats(), record.input.options.trace_headers
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
    """A tracer if an endpoint is configured. Raises ConfigError if the packages are not
    installed."""
    endpoint = config.observability.otlp_traces_endpoint
    if endpoint is None:
        return None
    return RequestTracer.to_endpoint(endpoint, config.model.served_model_name[0])


def _flush_at_the_end(provider: TracerProvider, ending: queue.SimpleQueue[None]) -> None:
    ending.get()
    provider.shutdown()


def _attributes(record: RequestRecord, model: str) -> dict[str, Any]:
    """Span attributes with vLLM's names. Times are in seconds; those of phases not reached are
    omitted."""
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
    """gRPC as in vLLM, unless OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or the URL selects HTTP."""
    try:
        parts = urlsplit(endpoint)
        speaks_http = parts.path.strip("/") != "" or parts.port == _HTTP_PORT
    except ValueError as error:
        raise ConfigError(
            f"otlp_traces_endpoint={quoted(endpoint)} must be a URL: {error}; "
            "try http://localhost:4317"
        ) from None
    protocol = env.otlp_protocol() or ("http/protobuf" if speaks_http else "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter(endpoint, insecure=parts.scheme != "https")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http

        return by_http.OTLPSpanExporter(endpoint)
    raise ConfigError(
        f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL must be grpc or http/protobuf, not {protocol!r}"
    )


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

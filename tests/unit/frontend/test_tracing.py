"""A span per request, with vLLM's attributes, under the caller's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sdk = pytest.importorskip("opentelemetry.sdk.trace")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from quire.errors import ConfigError, EngineGenerateError  # noqa: E402
from quire.frontend.observers.tracing import RequestTracer  # noqa: E402
from quire.frontend.online.async_llm import AsyncLLM  # noqa: E402
from quire.params import SamplingParams  # noqa: E402

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def engine(exporter: InMemorySpanExporter, tmp_path: Path) -> Iterator[AsyncLLM]:
    from fake_core import FakeCore
    from fake_engine import fake_config
    from tiny_model import write_tiny_model

    from quire.core.client import ThreadHost

    config = fake_config(tokenizer=write_tiny_model(tmp_path / "tiny"))
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = RequestTracer(provider, "tiny")
    client = ThreadHost(lambda: FakeCore(config), step_timeout_s=60.0)
    engine = AsyncLLM(config, client=client, tracer=tracer)
    yield engine
    engine.shutdown()


async def collect(engine: AsyncLLM, prompt: Any, name: str, **options: Any) -> None:
    headers = options.pop("trace_headers", None)
    params = SamplingParams(**options)
    async for _ in engine.generate(prompt, params, name, trace_headers=headers):
        pass


def test_a_request_becomes_a_span(engine: AsyncLLM, exporter: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    asyncio.run(collect(engine, "ABC", "mine", max_tokens=7, n=2, top_p=0.5, trace_headers=headers))
    [span] = exporter.get_finished_spans()
    assert span.name == "llm_request"
    assert format(span.context.trace_id, "032x") == TRACE
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == PARENT
    found = dict(span.attributes)
    latencies = {name: found.pop(name) for name in list(found) if "latency" in name}
    assert found == {
        "gen_ai.response.model": "tiny",
        "gen_ai.request.id": "mine",
        "gen_ai.request.n": 2,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 14,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }
    assert set(latencies) == {
        "gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e",
        "gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill",
        "gen_ai.latency.time_in_model_decode", "gen_ai.latency.time_in_model_inference",
    }  # fmt: skip
    assert 0 <= latencies["gen_ai.latency.time_to_first_token"] < latencies["gen_ai.latency.e2e"]
    assert span.start_time < span.end_time


def test_without_a_parent_it_is_a_root(engine: AsyncLLM, exporter: InMemorySpanExporter) -> None:
    for headers in (None, {}, {"traceparent": "rubbish"}):
        asyncio.run(collect(engine, "A", "r", max_tokens=1, trace_headers=headers))
    spans = exporter.get_finished_spans()
    assert [span.parent for span in spans] == [None] * 3


async def test_a_failure_and_an_abort_are_told(
    engine: AsyncLLM, exporter: InMemorySpanExporter
) -> None:
    from fake_core import REFUSE

    with pytest.raises(EngineGenerateError):
        await collect(engine, [REFUSE], "bad")
    leaver = engine.generate("A", SamplingParams(max_tokens=300), "leaver")
    await leaver.__anext__()
    await leaver.aclose()
    failed, left = exporter.get_finished_spans()
    assert not failed.status.is_ok
    assert "refused" in failed.status.description
    assert failed.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert left.attributes["gen_ai.response.finish_reasons"] == ("abort",)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "smoke")
    with pytest.raises(ConfigError, match=r"must be grpc or http/protobuf, not 'smoke'"):
        RequestTracer.to_endpoint("http://127.0.0.1:1", "m")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'quire-engine\[otel\]'"):
        RequestTracer.to_endpoint("http://127.0.0.1:1", "m")

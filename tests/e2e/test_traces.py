"""Traces of a real server, as a collector receives them over OTLP and HTTP."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH

from .conftest import StartServer

if TYPE_CHECKING:
    from .trace_collector import Collector

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_request_is_traced(start_server: StartServer, collector: Collector) -> None:
    server = start_server(env=SOON, engine={"otlp_traces_endpoint": collector.url})
    body = {"prompt": "Hello", "max_tokens": 5, "ignore_eos": True}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    with server.client() as client:
        client.post("/v1/completions", json=body, headers=headers).raise_for_status()
    resource, span = collector.spans.get(timeout=30)
    assert span.name == "llm_request"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    found = {one.key: one.value for one in span.attributes}
    assert found["gen_ai.usage.prompt_tokens"].int_value == 5
    assert found["gen_ai.usage.completion_tokens"].int_value == 5
    assert found["gen_ai.request.id"].string_value == "cmpl-mine-0"
    assert found["gen_ai.response.model"].string_value == "tiny"
    named = {one.key: one.value.string_value for one in resource.attributes}
    assert named["service.name"] == "quire"
    # What has not been sent yet goes out when the server ends.
    with server.client() as client:
        client.post("/v1/completions", json=body).raise_for_status()
        server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert collector.spans.get(timeout=60)[1].name == "llm_request"


@pytest.mark.long
def test_a_collector_that_hangs_delays_nobody(start_server: StartServer) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        env = {
            **SOON,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "300",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint,
        }
        server = start_server(env=env)
        with server.client() as client:
            begin = time.monotonic()
            for _ in range(20):
                body = {"prompt": "Hello", "max_tokens": 1}
                client.post("/v1/completions", json=body).raise_for_status()
            assert time.monotonic() - begin < 30
        begin = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - begin < 30


@pytest.mark.parametrize("kind", ["LLM", "LLMEngine"])
def test_a_script_that_shuts_nothing_down_is_traced(collector: Collector, kind: str) -> None:
    options = (
        f"model={str(DEMO_MODEL_PATH)!r}, max_model_len=64, kv_cache_memory_bytes=1 << 22,"
        f"kv_store=False, otlp_traces_endpoint={collector.url!r}"
    )
    of_kind = {
        "LLM": f"engine = LLM({options}); engine.generate('Hello', params)",
        "LLMEngine": f"engine = LLMEngine.from_engine_args(EngineArgs({options}))\n"
        "engine.add_request('mine', 'Hello', params)\n"
        "while engine.has_unfinished_requests(): engine.step()",
    }
    script = (
        "from quire import LLM, EngineArgs, LLMEngine, SamplingParams\n"
        f"params = SamplingParams(max_tokens=3, ignore_eos=True)\n{of_kind[kind]}"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    _, span = collector.spans.get(timeout=60)
    found = {one.key: one.value for one in span.attributes}
    assert found["gen_ai.usage.completion_tokens"].int_value == 3

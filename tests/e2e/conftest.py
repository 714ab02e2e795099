"""A tiny model, and servers of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from running_server import RunningServer, StartServer, engine_options

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH

if TYPE_CHECKING:
    import openai
    from trace_collector import Collector

FAKES = Path(__file__).parents[1] / "fakes"
"""Servers of these tests."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def start_server(tiny_model: Path) -> Iterator[StartServer]:
    """Starts servers of a test's own; they end with it."""
    servers: list[RunningServer] = []

    def start(
        engine: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        wait: bool = True,
        program: tuple[str, ...] = ("-m", "quire"),
        **server: Any,
    ) -> RunningServer:
        options = {**engine_options(tiny_model), **(engine or {})}
        running = RunningServer(options, {"port": 0, **server}, env, program)
        servers.append(running)
        return running.wait_until_serving() if wait else running

    yield start
    for running in servers:
        running.stop()
    for running in servers:
        assert running.may_log_tracebacks or "Traceback" not in running.log()


def start_demo(start_server: StartServer, num_blocks: int) -> RunningServer:
    """The demo model with a KV cache that is full soon, so that memory has stopped growing."""
    engine = {
        "model": DEMO_MODEL_PATH, "dtype": "auto", "backend": "auto",
        "num_gpu_blocks_override": num_blocks,
    }  # fmt: skip
    return start_server(engine=engine, disable_access_log=True)


@pytest.fixture(scope="session")
def server(tiny_model: Path) -> Iterator[RunningServer]:
    """One server for all tests that leave it as they found it."""
    running = RunningServer(engine_options(tiny_model), {"port": 0})
    yield running.wait_until_serving()
    running.stop()


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Receives the traces of a server that is given its `url`."""
    pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    from trace_collector import Collector

    collector = Collector()
    yield collector
    collector.close()

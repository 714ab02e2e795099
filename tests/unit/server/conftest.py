"""The whole application in this process, over the fake core: answers computed by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from .pooling_client import Client


class Harness:
    """An application and its context; `run` makes an event loop for a test without one."""

    def __init__(self, context: Any, app: Any) -> None:
        self.context = context
        self.app = app

    @property
    def model(self) -> Any:
        """The served model."""
        return self.context.model

    def client(self, **options: Any) -> httpx.AsyncClient:
        """A client inside an event loop."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        return httpx.AsyncClient(
            transport=transport, base_url="http://quire", timeout=60, **options
        )

    def run(self, scenario: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
        async def main() -> Any:
            async with self.client(**options) as client:
                return await scenario(client)

        return asyncio.run(main())

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request."""
        return self.run(lambda client: client.request(method, path, **options))

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """One POST with a JSON body."""
        return self.request("POST", path, json=body, **options)


MakeHarness = Callable[..., Harness]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def make_harness(tiny_model: Path) -> Iterator[MakeHarness]:
    from fake_core import FakeCore
    from fake_engine import fake_engine

    from quire.chat.async_renderer import AsyncChatRenderer
    from quire.chat.template_files import read_templates
    from quire.chat.templates import ChatTemplates
    from quire.server import ServerArgs
    from quire.server.app import build_app
    from quire.server.context import ServerContext

    engines, renderers = [], []

    def make(keys: tuple[str, ...] = (), is_loaded: bool = True, **options: Any) -> Harness:
        scheduler, core = options.pop("scheduler", {}), options.pop("core", FakeCore)
        options.setdefault("allowed_hosts", ("quire",))
        has = {name: options.pop(name, False) for name in ("has_profiler", "has_kv_store")}
        context = ServerContext(ServerArgs(**options), **has)
        model = context.add_model(("tiny", "alias"))
        if is_loaded:
            engine = fake_engine(tiny_model, core, **scheduler)
            engines.append(engine)
            model.engine = engine
            assert engine.tokenizer is not None
            templates = ChatTemplates(read_templates(tiny_model), engine.tokenizer.roles)
            model.chat = AsyncChatRenderer(templates)
            renderers.append(model.chat)
        return Harness(context, build_app(context, keys))

    yield make
    for closable in renderers:
        closable.close()
    for engine in engines:
        engine.shutdown()


MakeScripted = Callable[..., Harness]


@pytest.fixture
def make_scripted(make_harness: MakeHarness) -> MakeScripted:
    """A server of a model that always says this, reasons in tags and calls tools as Hermes.
    `step_s`: how long it takes for a token, for tests that act meanwhile."""

    def make(text: str, step_s: float = 0.0, **options: Any) -> Harness:
        from scripted_core import scripted

        from quire.parsers.format import ReplyFormat
        from quire.parsers.reasoning_tags import ReasoningTags
        from quire.parsers.tool_formats.hermes import HermesCalls

        harness = make_harness(core=scripted(text, step_s), **options)
        reasoning = ReasoningTags("<think>", "</think>")
        harness.model.found_format = ReplyFormat(reasoning, HermesCalls())
        return harness

    return make


@pytest.fixture
def harness(make_harness: MakeHarness) -> Harness:
    return make_harness()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server with a model that gives vectors."""
    from tiny_encoder import write_encoder

    from .pooling_client import Client

    directory = write_encoder(tmp_path_factory.mktemp("bert"), matryoshka_dimensions=[8, 32])
    client = Client(directory)
    yield client
    client.close()


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server with a model that scores pairs."""
    from tiny_encoder import write_encoder

    from .pooling_client import Client

    directory = tmp_path_factory.mktemp("reranker")
    write_encoder(directory, "BertForSequenceClassification", num_labels=1)
    client = Client(directory)
    yield client
    client.close()

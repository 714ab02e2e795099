"""An engine client over the fake core, in each host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient, EngineListener, ThreadHost
from quire.core.process_host import ProcessHost
from quire.errors import EngineDeadError
from quire.params import SamplingParams
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest


def make_config(model: str = "fake", max_num_seqs: int = 4) -> EngineConfig:
    from fake_engine import fake_config

    return fake_config(model=model, max_num_seqs=max_num_seqs)


def make_request(request_id: str, prompt: list[int], max_tokens: int = 4) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=max_tokens, seed=1),
        arrival_time=time.time(),
    )


class Recorder:
    """A listener that keeps everything it is told and lets a test wait for it."""

    def __init__(self) -> None:
        self.outputs: list[EngineCoreOutput] = []
        self.deaths: list[EngineDeadError] = []
        self._wake_up = asyncio.Event()

    def listener(self) -> EngineListener:
        return EngineListener(on_outputs=self._on_outputs, on_dead=self._on_dead)

    def tokens_of(self, request_id: str) -> list[int]:
        mine = [output for output in self.outputs if output.request_id == request_id]
        return [token for output in mine for token in output.new_token_ids]

    def end_of(self, request_id: str) -> EngineCoreOutput | None:
        for output in self.outputs:
            if output.request_id == request_id and output.finish_reason is not None:
                return output
        return None

    async def until(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            self._wake_up.clear()
            await asyncio.wait_for(self._wake_up.wait(), end - time.monotonic())

    def _on_outputs(self, outputs: EngineCoreOutputs) -> None:
        self.outputs.extend(outputs.outputs)
        self._wake_up.set()

    def _on_dead(self, error: EngineDeadError) -> None:
        self.deaths.append(error)
        self._wake_up.set()


MakeClient = Callable[..., EngineCoreClient]


def make_thread_client(config: EngineConfig, step_timeout_s: float = 60.0) -> EngineCoreClient:
    from fake_core import FakeCore

    return ThreadHost(lambda: FakeCore(config), step_timeout_s)


def make_process_client(config: EngineConfig, step_timeout_s: float = 60.0) -> EngineCoreClient:
    return ProcessHost(config, step_timeout_s, core_factory="fake_core:FakeCore")


@pytest.fixture(params=["thread", "process"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    clients: list[EngineCoreClient] = []
    maker = make_thread_client if request.param == "thread" else make_process_client

    def make(config: EngineConfig | None = None, **options: Any) -> EngineCoreClient:
        client = maker(config or make_config(), **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.shutdown()

"""A server in this process for each test, which always gives one reply and records its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from quire.protocol import EngineCoreRequest
from server.conftest import Harness

from .apis import APIS, Asked, ChatApi, Reply


@dataclass(slots=True)
class Conversation:
    """One API of one server."""

    api: ChatApi
    harness: Harness
    received: list[EngineCoreRequest]
    """Requests that reached the engine, in order."""

    def post(self, asked: Asked, *, is_stream: bool = False, **fields: Any) -> Any:
        """The HTTP reply. `fields`: further fields of this API's body."""
        extra = self.api.stream_fields if is_stream else {}
        body = {**self.api.body(asked), "stream": is_stream, **extra, **fields}
        return self.harness.post(self.api.path, body)

    def whole(self, asked: Asked) -> Reply:
        """The reply, sent as a whole."""
        reply = self.post(asked)
        assert reply.status_code == 200, reply.text
        return self.api.whole(reply.json())

    def streamed(self, asked: Asked) -> Reply:
        """The reply, summed from the events of a stream."""
        reply = self.post(asked, is_stream=True)
        assert reply.status_code == 200, reply.text
        return self.api.streamed(reply.text)

    def same(self, asked: Asked) -> Reply:
        """The reply, which is the same whole and streamed."""
        whole, stream = self.whole(asked), self.streamed(asked)
        assert whole == stream
        return whole


Talk = Callable[..., Conversation]


@pytest.fixture(params=APIS, ids=lambda api: api.name)
def talk(request: pytest.FixtureRequest, make_scripted: Any) -> Talk:
    """Starts a server whose model always gives the same reply."""
    return _starter(request.param, make_scripted)


@pytest.fixture(params=[api for api in APIS if api.has_choice], ids=lambda api: api.name)
def talk_with_choice(request: pytest.FixtureRequest, make_scripted: Any) -> Talk:
    """The same for the APIs whose requests may say which tools are called."""
    return _starter(request.param, make_scripted)


def _starter(api: ChatApi, make_scripted: Any) -> Talk:
    def start(text: str, **options: Any) -> Conversation:
        harness = make_scripted(text, **options)
        received: list[EngineCoreRequest] = []
        requests = harness.model.live_engine().requests
        hand_over = requests.hand_over

        def recorded(core_request: EngineCoreRequest) -> None:
            received.append(core_request)
            hand_over(core_request)

        requests.hand_over = recorded
        return Conversation(api, harness, received)

    return start

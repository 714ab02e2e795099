"""vLLM's options of a server: what each changes in replies, paths and the log."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import ConfigError
from quire.server import ServerArgs
from quire.server.app import user_middleware
from quire.server.connection.tls import tls_options
from quire.server.conversation.chat_text import with_system_prompt
from quire.server.conversation.message import ChatMessage
from quire.server.http.event_stream import EventStream
from quire.server.http.middleware import logger as access_log

from .conftest import MakeHarness
from .test_completions import events_of

BODY = {"prompt": "A", "max_tokens": 3}


class Outer:
    """Middleware as a class."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["trail"] = ["class"]
        await self._app(scope, receive, send)


async def inner(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Middleware as a function."""
    response = await call_next(request)
    response.headers["x-trail"] = ",".join([*request.state.trail, "function"])
    return response


def test_middleware_of_users_runs_in_order(make_harness: MakeHarness) -> None:
    harness = make_harness(middleware=(f"{__name__}.Outer", f"{__name__}.inner"), keys=("key",))
    reply = harness.request("GET", "/v1/models")
    assert (reply.status_code, reply.headers["x-trail"]) == (401, "class,function")
    assert "x-request-id" in reply.headers


class Exiting(Outer):
    """Middleware as a class, which ends the program."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/models":
            sys.exit("broken")
        await super().__call__(scope, receive, send)


async def exiting(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """The same as a function."""
    if request.url.path == "/v1/models":
        sys.exit("broken")
    return await call_next(request)


@pytest.mark.parametrize("name", ["Exiting", "exiting"])
def test_middleware_that_exits_ends_its_request_alone(make_harness: MakeHarness, name: str) -> None:
    """A function runs the next handler in its own task; a SystemExit there ends the event loop."""
    paths = tuple(f"{__name__}.{one}" for one in ("Outer", "inner", name))
    harness = make_harness(middleware=paths)
    assert harness.request("GET", "/v1/models").status_code == 500
    assert harness.request("GET", "/version").status_code == 200


@pytest.mark.parametrize("path", ["nowhere.Name", "os.no_such", "os.path", "json.dumps", "", "x"])
def test_what_is_no_middleware_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="middleware="):
        user_middleware(path)


@pytest.mark.parametrize(
    ("options", "fingerprint"),
    [
        ({"fingerprint_mode": "custom", "fingerprint_value": "mine"}, "mine"),
        ({"fingerprint_mode": "none"}, None),
    ],
)
def test_the_fingerprint(
    make_harness: MakeHarness, options: dict[str, Any], fingerprint: str | None
) -> None:
    reply = make_harness(**options).post("/v1/completions", BODY).json()
    assert reply.get("system_fingerprint") == fingerprint
    usual = make_harness(fingerprint_mode="hash").post("/v1/completions", BODY).json()
    assert usual["system_fingerprint"].startswith("quire-")


def test_usage_in_every_stream(make_harness: MakeHarness) -> None:
    harness = make_harness(enable_force_include_usage=True)
    for options in (None, {"include_usage": False, "continuous_usage_stats": False}):
        body = {**BODY, "stream": True, "stream_options": options}
        *events, last = events_of(harness.post("/v1/completions", body))
        assert last["choices"] == []
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts)
        assert counts[0] >= 1
        assert last["usage"]["completion_tokens"] == counts[-1] == 3


def test_tokens_as_ids_unless_the_request_says_otherwise(make_harness: MakeHarness) -> None:
    harness = make_harness(return_tokens_as_token_ids=True)
    for own, is_id in ((None, True), (False, False), (True, True)):
        body = {**BODY, "logprobs": 0, "return_tokens_as_token_ids": own}
        reply = harness.post("/v1/completions", body).json()
        tokens = reply["choices"][0]["logprobs"]["tokens"]
        assert all(token.startswith("token_id:") for token in tokens) == is_id


def test_paths_that_are_not_logged(
    make_harness: MakeHarness,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(access_log, "handlers", [caplog.handler])
    caplog.set_level(logging.INFO, access_log.name)
    harness = make_harness(disable_access_log_for_endpoints="/version, /v1/nothing")
    harness.request("GET", "/version")
    harness.request("GET", "/v1/models")
    told = [record.getMessage() for record in caplog.records if record.name == access_log.name]
    assert {line.split()[2] for line in told} == {"/v1/models"}


def test_variables_of_the_chat_template(make_harness: MakeHarness) -> None:
    from quire.server.conversation.chat_text import chat_input
    from quire.server.conversation.conversation import Conversation

    harness = make_harness(
        default_chat_template_kwargs={"enable_thinking": False, "a": 1},
        chat_template_content_format="openai",
        exclude_tools_when_tool_choice_none=True,
    )
    tools: Any = [{"type": "function"}]
    chat = Conversation(messages=[], tools=tools, forbids_calls=True, variables={"a": 2})
    made = chat_input(harness.model, chat)
    assert made.variables == {"enable_thinking": False, "a": 2}
    assert (made.content_format, made.tools) == ("openai", None)
    made = chat_input(harness.model, Conversation(messages=[], effort="high"))
    assert made.variables is not None
    assert made.variables["enable_thinking"] is True


def test_the_efforts_that_the_chat_template_knows(make_harness: MakeHarness) -> None:
    from quire.server.conversation.chat_text import chat_input
    from quire.server.conversation.conversation import Conversation

    harness = make_harness(reasoning_effort_map={"xhigh": "high", "low": "none"})
    for asked, given in (("xhigh", "high"), ("low", "none"), ("medium", "medium")):
        chat = Conversation(messages=[], effort=asked)
        made = chat_input(harness.model, chat).variables
        assert made == {"enable_thinking": given != "none", "reasoning_effort": given}
    own = {"reasoning_effort": "xhigh"}  # a variable of the template is not an effort asked for
    made = chat_input(harness.model, Conversation(messages=[], variables=own))
    assert made.variables == own
    for wrong in ({"highest": "high"}, {"high": 3}, {"high": None}):
        with pytest.raises(ConfigError, match="reasoning_effort_map must give a text"):
            ServerArgs(reasoning_effort_map=wrong)  # type: ignore[arg-type]


def sent(keep_alive_s: float, *, fails: bool = False) -> list[bytes]:
    """What a stream sends of two parts with a pause between them."""
    bodies: list[bytes] = []

    async def parts() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await go_on.wait()
        if fails:
            raise ConfigError("it broke")
        yield b"data: 2\n\n"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))
        if b"keep-alive" in bodies[-1]:
            go_on.set()

    async def main() -> None:
        if not keep_alive_s:
            go_on.set()
        await EventStream(parts(), lambda: None, keep_alive_s=keep_alive_s)({}, receive, send)

    go_on = asyncio.Event()
    asyncio.run(main())
    return [body for body in bodies if body]


def test_a_silent_stream_sends_comments() -> None:
    first, comment, *rest = sent(0.01)
    assert (first, comment) == (b"data: 1\n\n", b": keep-alive\n\n")
    assert rest[-2:] == [b"data: 2\n\n", b"data: [DONE]\n\n"]
    assert b"it broke" in sent(0.01, fails=True)[-2]
    assert sent(0) == [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]


def test_a_stream_that_fails_before_its_first_part_has_sent_nothing() -> None:
    """So the request gets the status of its error, and clients and proxies can send it again."""
    sent: list[Any] = []

    async def parts() -> AsyncIterator[bytes]:
        raise ConfigError("it broke")
        yield b""

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(ConfigError, match="it broke"):
        asyncio.run(EventStream(parts(), lambda: None)({}, receive, send))
    assert not sent


def test_certificates_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_cert_chain", "load_verify_locations"):
        monkeypatch.setattr(ssl.SSLContext, name, lambda *_: None)
    files = {"ssl_certfile": "c", "ssl_keyfile": "k"}
    cases: list[tuple[dict[str, Any], ssl.VerifyMode]] = [
        ({}, ssl.CERT_NONE),
        ({"ssl_ca_certs": "a"}, ssl.CERT_REQUIRED),
        ({"ssl_ca_certs": "a", "ssl_cert_reqs": "1"}, ssl.CERT_OPTIONAL),
        ({"ssl_ca_certs": "a", "ssl_cert_reqs": "0"}, ssl.CERT_NONE),
    ]
    for options, mode in cases:
        context = tls_options(ServerArgs(**files, **options))["ssl"]
        assert context.verify_mode == mode
    with pytest.raises(ConfigError, match=r"ssl_ciphers='no such cipher' names no TLS ciphers"):
        tls_options(ServerArgs(**files, ssl_ciphers="no such cipher"))  # type: ignore[arg-type]


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    for name, cause in (("c", "PEM"), ("d", "No such file")):
        files = {"ssl_certfile": str(tmp_path / name), "ssl_keyfile": "k"}
        with pytest.raises(ConfigError, match=rf"ssl_certfile='{tmp_path}/{name}', .*{cause}"):
            tls_options(ServerArgs(**files))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_prompt_is_for_conversations_without_one(role: str) -> None:
    user = ChatMessage(role="user", content="Hi")
    made = with_system_prompt([user], "Be brief.")
    assert [(one.role, one.content) for one in made] == [("system", "Be brief."), ("user", "Hi")]
    own = [ChatMessage(role=role, content="Be long."), user]
    assert with_system_prompt(own, "Be brief.") is own
    assert with_system_prompt([user], "") == [user]

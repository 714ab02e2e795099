"""SageMaker's sessions at /invocations: begun, named, ended, forgotten."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from quire.errors import ConfigError
from quire.server.apis.invocations.sessions import Sessions

from .conftest import Harness, MakeHarness

SESSION = "X-Amzn-SageMaker-Session-Id"
NEW, CLOSED = "X-Amzn-SageMaker-New-Session-Id", "X-Amzn-SageMaker-Closed-Session-Id"
ASKED = {"prompt": "A", "max_tokens": 2}


@pytest.fixture
def server(make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setenv("SAGEMAKER_ENABLE_STATEFUL_SESSIONS", "true")
    return make_harness()


def begin(server: Harness) -> str:
    reply = server.post("/invocations", {"requestType": "NEW_SESSION"})
    assert reply.status_code == 200
    found = re.fullmatch(
        r"([0-9a-f-]{36}); Expires=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reply.headers[NEW]
    )
    assert found
    return found[1]


def named(session_id: str) -> dict[str, Any]:
    return {"headers": {SESSION: session_id}}


def test_a_session_from_begin_to_end(server: Harness) -> None:
    session_id, other = begin(server), begin(server)
    assert session_id != other
    reply = server.post("/invocations", ASKED, **named(session_id))
    assert reply.json()["choices"][0]["text"] == "BC"
    closed = server.post("/invocations", {"requestType": "CLOSE"}, **named(session_id))
    assert (closed.status_code, closed.headers[CLOSED]) == (200, session_id)
    for body in (ASKED, {"requestType": "CLOSE"}):
        again = server.post("/invocations", body, **named(session_id))
        assert again.status_code == 400
        assert "session not found" in again.json()["error"]["message"]
    assert server.post("/invocations", ASKED, **named(other)).status_code == 200
    assert server.post("/invocations", ASKED).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"requestType": "NEW_SESSION", "extra": 1}, 400, "extra"),
        ({"requestType": "CLOSE", "extra": 1}, 400, "extra"),
        ({"requestType": "OPEN"}, 400, "OPEN"),
        ({"requestType": 1, **ASKED}, 400, "requestType"),
        ({"requestType": "CLOSE"}, 424, "invalid session_id"),
    ],
)
def test_mistakes(server: Harness, body: dict[str, Any], status: int, message: str) -> None:
    reply = server.post("/invocations", body)
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]


def test_they_are_off_by_default(make_harness: MakeHarness) -> None:
    server = make_harness()
    replies = [
        server.post("/invocations", {"requestType": "NEW_SESSION"}),
        server.post("/invocations", {"requestType": "CLOSE"}, **named("x")),
        server.post("/invocations", ASKED, **named("x")),
    ]
    for reply in replies:
        assert reply.status_code == 400
        assert "stateful sessions not enabled" in reply.json()["error"]["message"]


def test_a_session_ends_by_itself(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = begin(server)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1199)
    assert server.post("/invocations", ASKED, **named(session_id)).status_code == 200
    monkeypatch.setattr(time, "monotonic", lambda: now + 1201)
    assert server.post("/invocations", ASKED, **named(session_id)).status_code == 400


def test_there_are_not_more_than_so_many(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.apis.invocations.sessions._MOST", 2)
    begin(server)
    begin(server)
    reply = server.post("/invocations", {"requestType": "NEW_SESSION"})
    assert reply.status_code == 424
    assert "there are 2 already" in reply.json()["error"]["message"]


@pytest.mark.parametrize("value", ["0", "x", "-1", "1.5", "9" * 30])
def test_how_long_they_last(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SAGEMAKER_SESSIONS_EXPIRATION", value)
    assert Sessions.from_environment().lifetime_s is None
    monkeypatch.setenv("SAGEMAKER_ENABLE_STATEFUL_SESSIONS", "1")
    with pytest.raises(ConfigError, match="SAGEMAKER_SESSIONS_EXPIRATION"):
        Sessions.from_environment()
    monkeypatch.setenv("SAGEMAKER_SESSIONS_EXPIRATION", "60")
    assert Sessions.from_environment().lifetime_s == 60

"""API keys, CORS, request ids, body bounds, the page and its headers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from quire.errors import ConfigError
from quire.server import ServerArgs, describe_bounds, ui
from quire.server.all_endpoints import ENDPOINTS
from quire.server.http.api_keys import load_api_keys
from quire.server.http.problems import OLLAMA_PREFIX, HttpError

from .conftest import Harness, MakeHarness

KEY = "secret-key"
OPEN = {
    ("GET", path)
    for path in ("/live", "/ready", "/readyz", "/health", "/v1/health", "/ping", "/version")
}
OPEN |= {("POST", "/ping")}


def call_raw(harness: Harness, raw_path: bytes, method: str = "GET", headers: Any = ()) -> int:
    """The status of a request whose path is exactly these bytes."""
    from urllib.parse import unquote

    statuses = []

    async def main() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "path": unquote(raw_path.decode()), "raw_path": raw_path, "query_string": b"",
            "root_path": "", "scheme": "http", "headers": list(headers),
            "client": ("1.2.3.4", 5), "server": ("quire", 80), "state": {},
        }  # fmt: skip
        await harness.app(scope, receive, send)

    asyncio.run(main())
    return statuses[0]


def test_every_route_but_probes_and_page_needs_the_key(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=(KEY, "other"))
    right = {"Authorization": f"Bearer {KEY}"}
    paths = [(one.method, one.path) for one in ENDPOINTS] + [
        ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/nothing"), ("DELETE", "/"),
        ("POST", "/health"),
    ]  # fmt: skip
    for method, path in paths:
        reply = harness.request(method, path)
        is_open = (method, path) in OPEN
        assert (reply.status_code != 401) == is_open, path
        if not is_open:
            error = reply.json()["error"]
            if path.startswith(OLLAMA_PREFIX):
                assert isinstance(error, str)
            else:
                assert error["type"] in ("Unauthorized", "authentication_error")
            assert harness.request(method, path, headers=right).status_code != 401
    for name in ("", *(f"ui/{name}" for name in ui.FILES)):
        assert harness.request("GET", f"/{name}").status_code == 200


@pytest.mark.parametrize(
    "raw_path",
    [
        b"/health/../v1/models", b"/%68ealth", b"//health", b"/health/", b"/health%00",
        b"/v1/models?/health", b"/ui/../v1/models", b"/ui/%2e%2e/v1/models", b"/metrics",
    ],
)  # fmt: skip
def test_tricks_with_paths_do_not_open_doors(make_harness: MakeHarness, raw_path: bytes) -> None:
    harness = make_harness(keys=(KEY,))
    assert call_raw(harness, raw_path) == 401


@pytest.mark.parametrize(
    "values",
    [
        [], [b""], [b"Bearer"], [b"Bearer "], [b"Bearer wrong"], [b"Basic " + KEY.encode()],
        [KEY.encode()], [b"Bearer " + KEY.encode() + b"x"], [b"Bearer " + KEY.encode()[:-1]],
        [b"Bearer wrong", b"Bearer " + KEY.encode()],
    ],
)  # fmt: skip
def test_only_a_right_key_is_right(make_harness: MakeHarness, values: list[bytes]) -> None:
    harness = make_harness(keys=(KEY,))
    headers = [(b"authorization", value) for value in values]
    assert call_raw(harness, b"/load", headers=headers) == 401
    right = [(b"authorization", b"bearer " + KEY.encode())]
    assert call_raw(harness, b"/load", headers=right) == 200


def test_a_host_header_changes_nothing(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=(KEY,))
    for host in (b"quire/health?", b"x/ready#", b"/live"):
        assert call_raw(harness, b"/load", headers=[(b"host", host)]) == 401


def test_keys_come_from_arguments_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n\nfrom-file\n")
    monkeypatch.setenv("QUIRE_API_KEY", "from-environment")
    args = ServerArgs(api_key=("given",), api_key_file=str(path), host="0.0.0.0")
    assert load_api_keys(args) == ("given", "from-file", "from-environment")
    monkeypatch.delenv("QUIRE_API_KEY")
    with pytest.raises(ConfigError, match="--api-key"):
        load_api_keys(ServerArgs(host="0.0.0.0"))
    assert load_api_keys(ServerArgs(host="0.0.0.0", allow_no_api_key=True)) == ()
    assert load_api_keys(ServerArgs(host="127.0.0.2")) == ()
    for wrong in ("", " a", "ü", "a\n"):
        with pytest.raises(ConfigError, match="API key"):
            load_api_keys(ServerArgs(api_key=(wrong,)))
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        load_api_keys(ServerArgs(api_key_file=str(path)))


def test_cors_is_off_unless_asked_for(make_harness: MakeHarness) -> None:
    headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    off = make_harness(keys=(KEY,)).request("OPTIONS", "/v1/models", headers=headers)
    assert off.status_code == 401
    assert "access-control-allow-origin" not in off.headers
    on = make_harness(keys=(KEY,), allowed_origins=("https://a.example",))
    assert on.request("OPTIONS", "/v1/models", headers=headers).status_code == 200
    other = {**headers, "Origin": "https://b.example"}
    assert on.request("OPTIONS", "/v1/models", headers=other).status_code == 400


GOOD = "https://good.example"
FOREIGN = [
    {"Host": "0.0.0.0:8000", "Origin": "http://evil.example"},
    {"Host": "evil.example:8000"},
    {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
    {"Host": "localhost.evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "1.2.3.4.5"},
    {"Host": "[::1"},
    {"Host": "localhost:80:evil.example"},
    {"Host": "[::1].evil.example"},
    {"Host": "evil%2eexample"},
    {"Host": "user@localhost"},
    {"Host": "localhost:8000", "Origin": "http://evil.example"},
    {"Host": "localhost:8000", "Origin": "http://localhost:3000"},
    {"Host": "localhost:8000", "Origin": "null"},
    {"Host": "", "Origin": "null"},
    {"Host": "192.168.1.5:8000", "Origin": "http://192.168.1.6:8000"},
]
OURS = [
    {"Host": "0.0.0.0:8000"},
    {"Host": "localhost:8000"},
    {"Host": "localhost."},
    {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000"},
    {"Host": "127.9.9.9"},
    {"Host": "[::1]:8000"},
    {"Host": "192.168.1.5:8000", "Origin": "http://192.168.1.5:8000"},
    {"Host": "[2001:db8::1]:80", "Origin": "http://[2001:DB8::1]:80"},
    {"Host": f"{socket.gethostname()}:8000"},
    {"Host": "llm.example:8000", "Origin": "http://llm.example:8000"},
    {"Host": "localhost:8000", "Origin": GOOD},
]
PLACES: list[dict[str, Any]] = [{}, {"host": "0.0.0.0"}, {"host": "::"}, {"host": "10.0.0.1"}]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("headers", [*FOREIGN, *OURS], ids=str)
def test_web_pages_cannot_use_a_server_without_keys(
    make_harness: MakeHarness, headers: dict[str, str], place: dict[str, Any]
) -> None:
    names = ("LLM.example",)
    harness = make_harness(is_loaded=False, allowed_origins=(GOOD,), allowed_hosts=names, **place)
    status = 403 if headers in FOREIGN else 200
    assert harness.request("GET", "/version", headers=headers).status_code == status


def test_no_route_of_a_server_without_keys_is_open_to_pages(make_harness: MakeHarness) -> None:
    harness = make_harness(is_loaded=False, host="0.0.0.0", allow_no_api_key=True)
    for one in ENDPOINTS:
        for headers in ({"Origin": "null"}, {"Host": "evil.example"}):
            reply = harness.request(one.method, one.path, headers=headers)
            assert reply.status_code == 403, one.path


def test_names_without_a_dot_are_those_of_a_network(make_harness: MakeHarness) -> None:
    headers = {"Host": "llm:8000", "Origin": "http://llm:8000"}
    for place, status in (({"host": "0.0.0.0"}, 200), ({}, 403)):
        harness = make_harness(is_loaded=False, **place)
        assert harness.request("GET", "/version", headers=headers).status_code == status


def test_pages_of_other_sites_may_call_where_they_are_allowed(make_harness: MakeHarness) -> None:
    name, page = {"Host": "a.example"}, {"Origin": "http://evil.example"}
    hosts = make_harness(is_loaded=False, allowed_hosts=("*",))
    assert hosts.request("GET", "/version", headers=name).status_code == 200
    assert hosts.request("GET", "/version", headers=page).status_code == 403
    origins = make_harness(is_loaded=False, allowed_origins=("*",))
    assert origins.request("GET", "/version", headers={**name, **page}).status_code == 200
    socket_file = make_harness(is_loaded=False, uds="/tmp/quire.sock")
    assert socket_file.request("GET", "/version", headers=name).status_code == 200
    assert socket_file.request("GET", "/version", headers=page).status_code == 403


def test_keys_make_the_guard_needless(make_harness: MakeHarness) -> None:
    right = {"Authorization": f"Bearer {KEY}"}
    keyed = make_harness(keys=(KEY,), is_loaded=False)
    for headers in ({"Host": "a.example"}, {"Origin": "http://a.example"}):
        assert keyed.request("GET", "/version", headers={**headers, **right}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
def test_a_page_must_name_the_type_of_its_body(make_harness: MakeHarness, path: str) -> None:
    """A browser sends a body without a type, or with that of a form, before it asks the server."""
    body = {"model": "tiny", "prompt": "A", "max_tokens": 1, "stream": False}
    harness = make_harness(keys=(KEY,))
    right = {"Authorization": f"Bearer {KEY}"}
    content = msgspec.json.encode(body)

    def status(**headers: str) -> int:
        reply = harness.request("POST", path, content=content, headers={**right, **headers})
        return reply.status_code

    page = "http://quire"
    assert status() == 200
    assert status(Origin=page, **{"Content-Type": "application/json"}) == 200
    assert status(Origin=page) == 415
    assert status(Origin=page, **{"Content-Type": ""}) == 415
    assert status(Origin=page, **{"Content-Type": "text/plain"}) == 415


def test_request_ids_are_echoed_or_made_or_refused(harness: Harness) -> None:
    given = harness.request("GET", "/version", headers={"X-Request-Id": "a-1:b"})
    assert given.headers["x-request-id"] == "a-1:b"
    made = {harness.request("GET", "/version").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for wrong in ("x" * 129, "a b", "a\tb", ""):
        reply = harness.request("GET", "/version", headers={"X-Request-Id": wrong})
        assert reply.status_code == 400, wrong


def test_the_same_id_twice_harms_nobody(harness: Harness) -> None:
    import asyncio

    async def scenario(client: httpx.AsyncClient) -> list[Any]:
        ask = {"prompt": "A", "max_tokens": 20}
        headers = {"X-Request-Id": "same"}
        return await asyncio.gather(
            *(client.post("/v1/completions", json=ask, headers=headers) for _ in range(3))
        )

    replies = harness.run(scenario)
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len({reply.json()["choices"][0]["text"] for reply in replies}) == 1


def test_a_body_is_bounded_by_what_arrives(make_harness: MakeHarness) -> None:
    harness = make_harness(max_body_bytes=1000)
    headers = {"content-type": "application/json"}

    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 500

    claimed = harness.request("POST", "/tokenize", content=b" " * 1001, headers=headers)
    streamed = harness.request("POST", "/tokenize", content=endless(), headers=headers)
    assert (claimed.status_code, streamed.status_code) == (413, 413)


def test_the_page_comes_with_its_headers_or_not_at_all(make_harness: MakeHarness) -> None:
    page = make_harness().request("GET", "/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert make_harness().request("GET", "/ui/nothing.js").status_code == 404
    without = make_harness(ui=False).request("GET", "/")
    assert (without.status_code, without.headers["allow"]) == (405, "POST")  # TEI's route
    assert (
        make_harness(disable_fastapi_docs=True).request("GET", "/openapi.json").status_code == 404
    )


def test_every_bound_is_listed() -> None:
    from fake_engine import fake_config

    listed = {bound.option for bound in describe_bounds(ServerArgs())}
    fields = ServerArgs.__dataclass_fields__
    assert {name for name in fields if name.startswith("max_")} <= listed
    assert {name for name in fields if name.endswith("_timeout")} <= listed
    config = fake_config()
    listed = {bound.option for bound in describe_bounds(ServerArgs(), config)}
    limits = (*config.model.__dataclass_fields__, *config.scheduler.__dataclass_fields__)
    assert {name for name in limits if name.startswith("max_")} - {"max_decode_slowdown"} <= listed


@pytest.mark.parametrize(
    "options",
    [
        {"port": 70000}, {"ssl_keyfile": "x"}, {"max_n": 0}, {"shutdown_timeout": -1},
        {"root_path": "x"}, {"allowed_origins": ("*",), "allow_credentials": True},
        {"request_timeout": float("nan")}, {"ssl_ca_certs": "x"},
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServerArgs(**options)


@pytest.mark.parametrize(
    "origin",
    ["5", "", "http://a/", "http://a/b", "http://A", "a.example", "http://a b", "http://ä"],
)
def test_origins_that_no_browser_sends_are_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed_origins must be .*http://localhost:3000"):
        ServerArgs(allowed_origins=("http://a:1", origin))


def test_origins_that_browsers_send_are_taken() -> None:
    origins = ("null", "https://a.example", "http://[::1]:3000", "app://x", "chrome-extension://ab")
    assert ServerArgs(allowed_origins=origins).allowed_origins == origins


def test_the_document_is_made_when_it_is_asked_for(make_harness: MakeHarness) -> None:
    harness = make_harness()
    assert harness.app.state.openapi.cache_info().currsize == 0
    document = harness.request("GET", "/openapi.json").json()
    assert set(document["paths"]) >= {"/v1/completions", "/live"}
    assert "/v1/completions" in harness.request("GET", "/docs").text
    assert harness.app.state.openapi.cache_info().misses == 1


def test_an_application_of_ray_serve_limits_the_time_of_a_body(make_harness: MakeHarness) -> None:
    """The HTTP server of Ray Serve does not, and each slow body takes a place of its own there."""
    from quire.ray.serve.replica import served_app

    context = make_harness(body_timeout=0.5).context
    harness = Harness(context, served_app(context, ()))
    was_left = False

    async def slowly() -> AsyncIterator[bytes]:
        nonlocal was_left
        yield b'{"prompt": "'
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            was_left = True
            raise

    headers = {"content-type": "application/json"}
    late = harness.request("POST", "/v1/completions", content=slowly(), headers=headers)
    assert late.status_code == 408
    assert "longer than body_timeout 0.5 s" in late.json()["error"]["message"]
    assert was_left
    assert harness.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200


def test_the_limit_of_a_body_is_not_one_of_the_reply() -> None:
    """After the body, only a disconnect is waited for, without a limit."""
    from quire.server.http.body_deadline import BodyDeadline

    messages = [
        {"type": "http.request", "body": b"{}", "more_body": False},
        {"type": "http.disconnect"},
    ]
    found = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, send
        found.append(await receive())
        found.append(await receive())

    async def receive() -> Any:
        if len(messages) == 1:
            await asyncio.sleep(0.3)
        return messages.pop(0)

    asyncio.run(BodyDeadline(app, 0.1)({"type": "http"}, receive, print))  # type: ignore[arg-type]
    assert [one["type"] for one in found] == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("arrives_after_s", [0.1, 9.0])
def test_the_time_in_which_the_process_stood_still_is_no_time_of_a_body(
    monkeypatch: pytest.MonkeyPatch, arrives_after_s: float
) -> None:
    """What has arrived meanwhile is read; a body that does not arrive then is too late."""
    from quire.server.http import body_deadline

    monkeypatch.setattr(body_deadline, "_AFTERWARDS_S", 0.3)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.8)  # the process stands still
        send(await receive())

    async def receive() -> Any:
        await asyncio.sleep(0.7 + arrives_after_s)
        return {"type": "http.request", "body": b"{}", "more_body": False}

    found: list[Any] = []
    limited = body_deadline.BodyDeadline(app, 0.5)({"type": "http"}, receive, found.append)  # type: ignore[arg-type]
    if arrives_after_s < 1:
        asyncio.run(limited)
        assert found[0]["body"] == b"{}"
    else:
        with pytest.raises(HttpError):
            asyncio.run(limited)


def test_a_body_in_slow_pieces_is_too_late_although_the_process_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quire.server.http import body_deadline

    monkeypatch.setattr(body_deadline, "_AFTERWARDS_S", 0.5)
    num_pieces = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, send
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.8)
        while True:
            await receive()

    async def receive() -> Any:
        nonlocal num_pieces
        num_pieces += 1
        assert num_pieces < 50
        await asyncio.sleep(0.1)
        return {"type": "http.request", "body": b"a", "more_body": True}

    with pytest.raises(HttpError):
        asyncio.run(body_deadline.BodyDeadline(app, 0.5)({"type": "http"}, receive, print))  # type: ignore[arg-type]

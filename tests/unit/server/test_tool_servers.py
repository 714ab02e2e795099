"""The tool servers of the page: the file of the operator, and what the page may connect to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.errors import ConfigError
from quire.server.apis.page import LiveView
from quire.server.tool_servers import ToolServers, read_tool_servers

URL = "http://tools.example:8931/mcp?a=1"


def write(folder: Path, servers: object) -> str:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def policy_of(harness: Any) -> str:
    policy = harness.request("GET", "/").headers["content-security-policy"]
    [sources] = [one for one in policy.split("; ") if one.startswith("connect-src")]
    return sources


def test_the_page_may_connect_to_itself_alone(harness: Any) -> None:
    assert policy_of(harness) == "connect-src 'self'"


def test_the_page_may_connect_to_the_servers_of_the_operator(
    make_harness: Callable[..., Any], tmp_path: Path
) -> None:
    servers = {"a": {"url": URL, "type": "http"}, "b": {"url": "https://B.example/x"},
               "c": {"url": "http://tools.example:8931/other"}}  # fmt: skip
    harness = make_harness(mcp_config=write(tmp_path, servers))
    assert policy_of(harness) == "connect-src 'self' http://tools.example:8931 https://b.example"
    assert "tools.example" in harness.request("GET", "/ui/app.js").headers.get(
        "content-security-policy"
    )


def test_users_with_own_servers_may_connect_to_any(make_harness: Callable[..., Any]) -> None:
    assert policy_of(make_harness(allow_own_mcp_servers=True)) == "connect-src *"


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({"command": "npx", "args": []}, "it is a command"),
        ({"url": URL, "headers": {"Authorization": "Bearer secret"}}, "could read its headers"),
        ({"url": "http://user:secret@a/mcp"}, "the password in its url"),
        ({"url": "http://*/mcp"}, "with a host name"),
        ({"url": "http://a;script-src/mcp"}, "with a host name"),
        ({"url": "http://a,b/mcp"}, "with a host name"),
        ({"url": "http://[::1]:80/mcp"}, "with a host name"),
        ({"url": "http://ä/mcp"}, "in ASCII"),
    ],
)
def test_a_server_that_only_the_terminal_can_use_is_named(
    make_harness: Callable[..., Any],
    tmp_path: Path,
    server: object,
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = write(tmp_path, {"one": server, "two": {"url": URL}})
    servers = read_tool_servers(path, allows_own=False)
    assert servers == ToolServers((("two", URL),), False, ("one",))
    [warning] = caplog.messages
    assert "only the terminal (quire run, quire chat) can use the server one" in warning
    assert problem in warning
    assert "secret" not in warning + json.dumps(servers.for_page())
    harness = make_harness(mcp_config=path)
    assert policy_of(harness) == "connect-src 'self' http://tools.example:8931"


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({"url": URL, "type": "sse"}, "type must be http"),
        ({"url": URL, "type": ["http"]}, "type must be http"),
        ({"url": "ftp://a/mcp"}, "url must be like"),
        ({"url": "//a/mcp"}, "url must be like"),
        ({"url": "http:///mcp"}, "url must be like"),
        ({"url": "http://a:99999/mcp"}, "url must be like"),
        ({"url": "http://a:x/mcp"}, "url must be like"),
        ({"url": "http://a\r\nx: y/mcp"}, "url must be like"),
        ({"url": 7}, "url must be a string"),
        ({}, "either a command or a url"),
        ("http://a/mcp", "either a command or a url"),
    ],
)
def test_a_server_that_nothing_can_call_is_refused(
    tmp_path: Path, server: object, problem: str
) -> None:
    with pytest.raises(ConfigError, match=r"mcpServers\.one") as refused:
        read_tool_servers(write(tmp_path, {"one": server}), allows_own=False)
    assert problem in str(refused.value)


def test_a_server_that_is_disabled_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, {"one": {"url": URL, "disabled": True, "alwaysAllow": ["x"]}})
    assert read_tool_servers(path, allows_own=False) == ToolServers()


@pytest.mark.parametrize("servers", [None, [], "x", {str(i): {"url": URL} for i in range(33)}])
def test_a_file_without_servers_is_refused(tmp_path: Path, servers: object) -> None:
    with pytest.raises(ConfigError, match="mcpServers has up to 32 servers"):
        read_tool_servers(write(tmp_path, servers), allows_own=True)


def test_a_file_that_cannot_be_read_or_a_name_that_deceives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--mcp-config: .* cannot be read"):
        read_tool_servers(str(tmp_path / "none.json"), allows_own=False)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_tool_servers(str(tmp_path / "broken.json"), allows_own=False)
    for name in ("", "\u202ea", "a\n", "a" * 101):
        with pytest.raises(ConfigError, match="name must be printable"):
            read_tool_servers(write(tmp_path, {name: {"url": URL}}), allows_own=False)


def test_the_page_reads_names_and_addresses(tmp_path: Path) -> None:
    servers = read_tool_servers(write(tmp_path, {"a": {"url": URL}}), allows_own=False)
    assert servers == ToolServers((("a", URL),), False)
    page = {"servers": [{"name": "a", "url": URL}], "allows_own": False, "only_terminal": []}
    assert servers.for_page() == page


def test_the_live_view_begins_with_the_servers(
    make_harness: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop(_: LiveView, seconds: float) -> None:
        del seconds
        harness.context.is_stopping = True

    monkeypatch.setattr(LiveView, "sleep", stop)
    harness = make_harness(mcp_config=write(tmp_path, {"a": {"url": URL}}))
    reply = harness.request("GET", "/quire/live", headers={"accept": "text/event-stream"})
    event = json.loads(reply.text.partition("data: ")[2].partition("\n")[0])
    assert event["mcp"]["servers"] == [{"name": "a", "url": URL}]

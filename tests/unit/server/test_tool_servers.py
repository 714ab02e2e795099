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
        ({"command": "npx", "args": []}, "starts no command"),
        ({"url": URL, "headers": {"Authorization": "Bearer x"}}, "every user of the page could"),
        ({"url": URL, "disabled": True}, "'disabled' is unknown"),
        ({"url": URL, "type": "sse"}, "type must be"),
        ({"url": URL, "type": ["http"]}, "type must be"),
        ({"url": "ftp://a/mcp"}, "must begin with http"),
        ({"url": "//a/mcp"}, "must begin with http"),
        ({"url": "http://user:pw@a/mcp"}, "no user name or password"),
        ({"url": "http://*/mcp"}, "must have a host name"),
        ({"url": "http://a;script-src/mcp"}, "must have a host name"),
        ({"url": "http://a,b/mcp"}, "must have a host name"),
        ({"url": "http://[::1]:80/mcp"}, "must have a host name"),
        ({"url": "http:///mcp"}, "must have a host name"),
        ({"url": "http://a:99999/mcp"}, "url"),
        ({"url": "http://a:x/mcp"}, "url"),
        ({"url": "http://a\r\nx: y/mcp"}, "in ASCII"),
        ({"url": "http://ä/mcp"}, "in ASCII"),
        ({"url": 7}, "in ASCII"),
        ({}, "in ASCII"),
        ("http://a/mcp", "must be an object with url"),
    ],
)
def test_a_server_that_the_page_cannot_call_is_refused(
    tmp_path: Path, server: object, problem: str
) -> None:
    with pytest.raises(ConfigError, match=r"^mcp_config: server 'one': ") as refused:
        read_tool_servers(write(tmp_path, {"one": server}), allows_own=False)
    assert problem in str(refused.value)


@pytest.mark.parametrize("servers", [None, {}, [], {str(i): {"url": URL} for i in range(21)}])
def test_a_file_without_servers_is_refused(tmp_path: Path, servers: object) -> None:
    with pytest.raises(ConfigError, match="mcpServers must be an object with 1 to 20 servers"):
        read_tool_servers(write(tmp_path, servers), allows_own=True)


def test_a_file_that_cannot_be_read_or_a_name_that_deceives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
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
    assert servers.for_page() == {"servers": [{"name": "a", "url": URL}], "allows_own": False}


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
    assert event["mcp"] == {"servers": [{"name": "a", "url": URL}], "allows_own": False}

"""Tools of MCP servers in the terminal: real servers, a scripted chat server, a scripted user."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
from page_server import ScriptedServer, say

from quire.cli import main
from quire.cli.mcp import servers as servers_module
from quire.cli.mcp import toolbox as toolbox_module
from quire.cli.mcp.servers import ToolServers
from quire.config.tool_servers import ServerEntry, read_config
from quire.errors import ConfigError

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs mcp")

PROGRAM = str(Path(__file__).with_name("tool_server.py"))


def entry(mode: str = "", name: str = "calc") -> ServerEntry:
    return ServerEntry(name, sys.executable, [PROGRAM, mode], {"OWN": "1"})


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": [PROGRAM, ""], "autoApprove": ["add"]}
    off = {"command": "no-such-program", "disabled": True}
    path.write_text(json.dumps({"mcpServers": {"calc": server, "off": off}}))
    return str(path)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The user's answers at a terminal, which tests fill."""
    answers: list[str | None] = []
    monkeypatch.setattr(toolbox_module, "is_interactive", lambda: True)
    monkeypatch.setattr(toolbox_module, "ask", lambda _: answers.pop(0))
    return answers


def calls(*wanted: tuple[str, str]) -> Callable[[dict[str, Any]], Iterator[dict[str, Any]]]:
    """A model that makes these calls, and answers with the last result."""

    def answer(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
        if results:
            yield from say("It says " + results[-1], 400)
            return
        for index, (name, arguments) in enumerate(wanted):
            function = {"name": name, "arguments": arguments[:3]}
            yield {"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]}
            rest = {"arguments": arguments[3:]}
            yield {"tool_calls": [{"index": index, "function": rest}]}

    return answer


def chat(server: ScriptedServer, config: str, *words: str) -> int:
    url = server.url + "v1"
    return main(["chat", "--url", url, "-q", "sum?", "--mcp-config", config, *words])


def results(server: ScriptedServer) -> list[str]:
    last = server.script.requests[-1]["messages"]
    return [one["content"] for one in last if one["role"] == "tool"]


def test_a_pipe_runs_only_allowed_tools(
    server: ScriptedServer, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.answer = calls(("add", '{"a": 41}'), ("environment", "{}"))
    assert chat(server, config, "--allow-tool", "add") == 0
    out, err = capsys.readouterr()
    assert out == "It says The user did not allow this call.\n"
    assert 'calc: add {"a": 41}' in err
    assert "--allow-tool environment allows it" in err
    first, last = server.script.requests
    assert [one["function"]["name"] for one in first["tools"]][:2] == ["add", "environment"]
    assert results(server) == ["42", "The user did not allow this call."]
    assert [one["id"] for one in last["messages"][1]["tool_calls"]] == ["c0", "c1"]


def test_the_user_decides_each_call(
    server: ScriptedServer,
    config: str,
    user: list[str | None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    user += ["what?", "y", "n", "a"]
    one, two = ("add", '{"a": 1}'), ("long", '{"a": 3}')
    server.script.answer = calls(one, one, two, two, ("nothing", "{}"), ("add", "[1]"))
    assert chat(server, config) == 0
    assert results(server) == [
        "2", "The user did not allow this call.", "xxx", "xxx", "There is no tool 'nothing'.",
        "The arguments must be a JSON object.",
    ]  # fmt: skip
    assert user == []
    assert '[calc: add {"a": 1}]' in capsys.readouterr().out


def test_a_question_without_an_answer_ends_the_answer(
    server: ScriptedServer,
    config: str,
    user: list[str | None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    user.append(None)
    server.script.answer = calls(("add", "{}"), ("add", "{}"))
    assert chat(server, config) == 0
    assert "[stopped]" in capsys.readouterr().out
    assert len(server.script.requests) == 1


def test_ctrl_c_cancels_a_call(
    server: ScriptedServer, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.answer = calls(("hang", "{}"))
    note = toolbox_module._note

    def interrupt(text: str) -> None:
        note(text)
        if text.startswith("[calc"):
            Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolbox_module, "_note", interrupt)
        assert chat(server, config, "--allow-tool", "hang") == 0
    assert "[stopped]" in capsys.readouterr().out


def test_the_rounds_of_an_answer_are_limited(
    server: ScriptedServer, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(_: object) -> Iterator[dict[str, Any]]:
        function = {"name": "add", "arguments": ""}
        yield {"tool_calls": [{"index": 0, "id": "c", "function": function}]}

    server.script.answer = answer
    assert chat(server, config, "--allow-tool", "add") == 0
    assert "at most 10 rounds" in capsys.readouterr().out
    assert len(server.script.requests) == 11


def test_a_server_that_dies_is_reported_and_the_chat_goes_on(
    server: ScriptedServer, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.answer = calls(("die", "{}"))
    assert chat(server, config, "--allow-tool", "die") == 0
    assert "It says The call failed: the program has ended" in capsys.readouterr().out
    assert "tools" not in server.script.requests[-1]


def test_programs_get_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "VLLM_API_KEY", "QUIRE_ANY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    with ToolServers([entry()], print) as tools:
        found = tools.call(tools.tools["environment"], {}, lambda: False)
    names = set((found or "").split())
    assert "OWN" in names
    assert not names & {"HF_TOKEN", "VLLM_API_KEY", "QUIRE_ANY", "OPENAI_API_KEY"}


def test_hostile_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with control characters, too many tools, garbage, long results, an exit."""
    from quire.cli.mcp import transport

    monkeypatch.setattr(transport, "MAX_MESSAGE", 1024 * 1024)
    warned: list[str] = []
    modes = ("garbage", "exit", "many")
    entries = [entry(mode, mode) for mode in modes]
    missing = ServerEntry("missing", "/no/such/program")
    web = ServerEntry("web", url="http://127.0.0.1:9/mcp")
    with ToolServers([*entries, missing, web], warned.append) as servers:
        tools = servers.tools
        assert len(tools) == 256

        def call(name: str, **arguments: int) -> str:
            return servers.call(tools[name], arguments, lambda: False) or ""

        assert call("fail") == "The tool reports an error: \x1b[2Jno such file"
        text = call("long", a=50_000)
        assert text.endswith(
            "[The result has 50,000 characters; the last 30,000 are left out here.]"
        )
        with pytest.raises(ConfigError, match="a line of more than 1,048,576 bytes"):
            call("long", a=3_000_000)
        assert "add" not in servers.tools
    said = "\n".join(warned)
    assert "1 tool(s) of garbage are left out, such as 'red\\x1b[31m'" in said
    assert "tools of exit cannot be used: the program has ended (\x1b[31mno database)" in said
    assert "of many are left out" in said
    for name in ("missing", "web"):
        assert f"tools of {name} cannot be used: " in said


def test_a_server_without_an_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "_START_S", 0.2)
    warned: list[str] = []
    with ToolServers([entry("silent")], warned.append) as servers:
        assert not servers.tools
    assert "it did not list its tools within 0.2 s" in warned[0]


class _Web(BaseHTTPRequestHandler):
    """A server of tools at a web address; a long result comes without its size."""

    def log_message(self, *args: object) -> None:
        """Tests want no access log."""

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = message.get("params") or {}
        if self.headers["Authorization"] != "Bearer key" or "id" not in message:
            self.send_response(202 if "id" not in message else 401)
            self.end_headers()
            return
        info = {"name": "web", "version": "1"}
        tool = {"name": "repeat", "inputSchema": {"type": "object"}}
        size = (asked.get("arguments") or {}).get("size", 0)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info,
            },
            "tools/list": {"tools": [tool]},
            "tools/call": {"content": [{"type": "text", "text": "y" * size}]},
        }  # fmt: skip
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] in results:
            reply["result"] = results[message["method"]]
        else:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(json.dumps(reply).encode())

    def do_GET(self) -> None:
        self.send_error(405)

    def do_DELETE(self) -> None:
        self.send_error(405)


def test_tools_of_a_web_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.cli.mcp import transport

    monkeypatch.setattr(transport, "MAX_MESSAGE", 1024 * 1024)
    warned: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Web) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
        good = ServerEntry("good", url=url, headers={"Authorization": "Bearer key"})
        with ToolServers([good, ServerEntry("bad", url=url)], warned.append) as servers:
            tool = servers.tools["repeat"]
            assert servers.call(tool, {"size": 3}, lambda: False) == "yyy"
            with pytest.raises(ConfigError):
                servers.call(tool, {"size": 3_000_000}, lambda: False)
        server.shutdown()
    [said] = warned
    assert said.startswith("tools of bad cannot be used: ")


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ([], "mcpServers"),
        ({"a": {}}, "either a command or a url"),
        ({"a": {"command": "x", "url": "http://x"}}, "either a command or a url"),
        ({"a": {"command": 3}}, "a.command must be a string"),
        ({"a": {"command": "x\0"}}, "a.command must be a string"),
        ({"a": {"command": "x", "args": "y"}}, "a.args must be a list of strings"),
        ({"a": {"command": "x", "env": {"K": 1}}}, "a.env must be an object of strings"),
        ({"a": {"url": "file:///etc"}}, "a.url must be like"),
        ({"a": {"url": "http://x", "type": "sse"}}, "a.type must be http"),
        ({"a": {"url": "http://x", "headers": ["secret"]}}, "a.headers must be"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, servers: object, said: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    with pytest.raises(ConfigError) as error:
        read_config(str(path))
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_options_that_do_not_fit(
    server: ScriptedServer, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(server, config, "--allow-tool", "ad") == 1
    assert "did you mean add?" in capsys.readouterr().err
    assert main(["chat", "--url", server.url, "-q", "x", "--allow-tool", "add"]) == 1
    assert "--allow-tool needs --mcp-config" in capsys.readouterr().err

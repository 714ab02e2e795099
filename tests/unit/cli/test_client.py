"""The client behind `quire chat` and `quire complete`, against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from page_server import ScriptedServer, say, say_haltingly

from quire.cli import main
from quire.cli.http_client import Server, ServerError
from quire.errors import ConfigError


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


def run(server: ScriptedServer, *words: str) -> int:
    return main([words[0], "--url", server.url + "v1", *words[1:]])


def test_a_quick_message_is_answered(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.answer = lambda _: say("It is 42.\x1b[31m")
    words = ("-q", "sum?", "--system-prompt", "Be brief.", "--max-tokens", "9", "--stats")
    assert run(server, "chat", *words) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "It is 42.[31m"  # no model commands the terminal
    assert "48 in (32 cached), 4 out" in out[1]
    sent = server.script.requests[0]
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "sum?"},
    ]  # fmt: skip
    assert (sent["model"], sent["max_tokens"]) == ("quire-demo", 9)


def test_a_pipe_is_a_conversation(
    server: ScriptedServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = iter(["one", "two"])

    def read(prompt: str) -> str:
        assert prompt == ""
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    server.script.answer = lambda body: say(f"answer {len(body['messages'])}")
    assert run(server, "chat") == 0
    assert capsys.readouterr().out == "answer 1\nanswer 3\n"


def test_the_address_of_a_server_is_enough(server: ScriptedServer) -> None:
    for url in (server.url, server.url.rstrip("/"), server.url + "v1", server.url + "v1/"):
        assert main(["chat", "--url", url, "-q", "hi"]) == 0
        assert server.script.requests[-1]["path"] == "/v1/chat/completions"
    with pytest.raises(ServerError, match="404 at /other/models"):
        Server(server.url + "other").first_model()
    assert Server("example.org/proxy/v1").url == "http://example.org/proxy/v1"


def test_sampling_defaults_come_from_the_server(server: ScriptedServer) -> None:
    chat = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
    server.script.sampling = {"model": {}, "chat": chat}
    for command in ("chat", "complete"):
        assert run(server, command, "-q", "hi", "--temperature", "0") == 0
        sent = server.script.requests[-1]
        assert {name: sent[name] for name in chat} == {**chat, "temperature": 0}
    server.script.sampling = {"model": {"temperature": 0.2}, "chat": {}}
    assert run(server, "chat", "-q", "hi") == 0
    assert "temperature" not in server.script.requests[-1]
    assert Server(server.url + "other/v1").sampling_defaults() is None


def test_a_model_without_a_chat_template_is_told_apart(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script.refusal = (400, "The model has no chat template.")
    assert run(server, "chat", "-q", "hi") == 1
    assert "`quire complete` works without one" in capsys.readouterr().err


def test_completions(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.script.answer = lambda body: say(body["prompt"].upper())
    assert run(server, "complete", "-q", "once upon") == 0
    assert capsys.readouterr().out == "ONCE UPON\n"


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_tokens_without_text_are_counted_and_not_shown(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    server.script.answer = lambda _: say_haltingly("It is 42.")
    assert run(server, command, "-q", "sum?", "--stats") == 0
    text, stats = capsys.readouterr().out.splitlines()
    assert text == "It is 42."
    assert "6 out" in stats


def test_reasoning_is_shown_apart(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(_: Any) -> Iterator[dict[str, str]]:
        yield {"reasoning": "17 + 25"}
        yield {"content": "42"}

    server.script.answer = answer
    assert run(server, "chat", "-q", "sum?") == 0
    assert capsys.readouterr().out == "<think>\n17 + 25\n</think>\n42\n"


def test_a_refusal_is_one_line(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.script.refusal = (503, "The queue is full.")
    assert run(server, "chat", "-q", "x") == 1
    assert capsys.readouterr().err == "quire chat: the server answered 503: The queue is full.\n"


def test_a_key_is_sent_and_asked_for(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script.api_key = "sesame"
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert run(server, "chat", "-q", "x") == 1
    assert "--api-key" in capsys.readouterr().err
    assert run(server, "chat", "-q", "x", "--api-key", "sesame") == 0
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    assert run(server, "chat", "-q", "x") == 0


def test_no_server_and_no_url() -> None:
    with pytest.raises(ServerError, match="quire serve"):
        Server("http://127.0.0.1:9/v1").first_model()
    for url in ("ftp://somewhere", "http://[::1", "http://127.0.0.1:99999", "http://a:b"):
        with pytest.raises(ConfigError, match="--url"):
            Server(url)


def test_a_broken_stream_is_noticed(server: ScriptedServer) -> None:
    def answer(_: Any) -> Iterator[dict[str, str]]:
        yield {"content": "half"}
        raise OSError("the wire broke")

    server.script.answer = answer
    stream = Server(server.url + "v1").stream("/chat/completions", {"messages": []})
    assert next(stream).text == "half"
    with pytest.raises(ServerError, match="before its end"):
        list(stream)


@pytest.mark.parametrize("delta", [3, "text", [1], {"content": 5}, {"tool_calls": 5}])
def test_an_event_of_another_kind_is_an_error(server: ScriptedServer, delta: Any) -> None:
    server.script.answer = lambda _: [delta]
    with pytest.raises(ServerError, match=r"does not belong to a completion: .*choices"):
        list(Server(server.url).stream("/chat/completions", {"messages": []}))


@pytest.fixture
def several() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server of several models, and what it is asked to unload."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": "a", "status": {"value": "loaded"}}]})

        def do_POST(self) -> None:
            assert self.path == "/v1/models/unload"
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            is_known = asked[-1]["model"] == "a"
            error = {"error": {"message": "there is no such model\x1b[31m"}}
            self._answer(200 if is_known else 404, {"success": True} if is_known else error)

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_stop_unloads_a_model(
    several: tuple[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, asked = several
    assert main(["stop", "a", "--url", url]) == 0
    assert (capsys.readouterr().out, asked) == ("a: unloaded\n", [{"model": "a"}])
    assert main(["stop", "b", "--url", url]) == 1
    assert "there is no such model" in (told := capsys.readouterr().err)
    assert "\x1b" not in told
    assert main(["stop", "--url", url]) == 1
    assert "name at least one model" in capsys.readouterr().err


def test_stop_says_that_a_server_of_one_model_keeps_it(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, "stop", "quire-demo") == 1
    assert "keeps its model loaded" in capsys.readouterr().err

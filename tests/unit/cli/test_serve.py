"""`quire serve`: which options reach the server and the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.cli.commands import serve
from quire.config.command_line.parser import Parser
from quire.config.engine_args import AsyncEngineArgs
from quire.server import serving
from quire.server.args import ServerArgs


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `serve` was called with."""
    calls: list[Any] = []

    def serve(engine_args: AsyncEngineArgs, server_args: ServerArgs, catalog: Any) -> int:
        assert not catalog
        calls.extend([engine_args, server_args])
        return 7

    monkeypatch.setattr(serving, "serve", serve)
    return calls


def test_options_reach_their_records(served: list[Any]) -> None:
    words = [
        "some/model", "--host", "0.0.0.0", "--api-key", "a", "b", "--max-model-len", "4K",
        "--no-ui", "--shutdown-timeout", "2.5", "--max-body-bytes", "1MiB",
        "--no-enable-prefix-caching", "--enable-log-requests", "--max-num-queued-reqs", "9",
    ]  # fmt: skip
    assert main(["serve", *words]) == 7
    engine, server = served
    assert (engine.model, engine.max_model_len) == ("some/model", 4096)
    assert engine.enable_prefix_caching is False
    assert engine.enable_log_requests is True
    assert (server.host, server.api_key, server.ui) == ("0.0.0.0", ("a", "b"), False)
    assert (server.shutdown_timeout, server.max_body_bytes) == (2.5, 2**20)
    assert engine.max_num_queued_reqs == 9


def test_an_empty_model_is_not_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], served: list[Any]
) -> None:
    """Such as of a variable of the shell that is not set."""
    assert main(["serve", ""]) == 7
    assert served[0].model == ""
    assert main(["serve", "", "--model", "m"]) == 1
    assert "two models" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["explain", ""]) == 1
    assert "there is no directory ''" in capsys.readouterr().err


def test_a_command_line_of_vllms_is_accepted(served: list[Any]) -> None:
    words = [
        "m", "--enable-prompt-tokens-details", "--enable-request-id-headers", "--port", "8001",
        "--disable-uvicorn-access-log", "-tp", "1", "--gpu-memory-utilization", "0.9",
        "--trust-remote-code", "--enforce-eager", "--api-server-count", "1",
    ]  # fmt: skip
    assert main(["serve", *words]) == 7
    assert served[1].disable_access_log is True
    assert served[1].port == 8001


def test_contradictions_are_refused(served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in (
        (["--port", "99999"], "port"),
        (["-asc", "2"], "--api-server-count 2"),
        (["--tool-call-parser", "hermis"], "did you mean hermes?"),
        (["--tool-call-parser", "none", "--enable-auto-tool-choice"], "remove one of them"),
        (["--trust-request-chat-template"], "ever trusted"),
        (["--grpc-port", "1"], "HTTP alone"),
        (["--fingerprint-mode", "custom"], "fingerprint_value"),
        (["--sse-keep-alive-interval", "-1"], "non-negative"),
        (["--disable-access-log-for-endpoints", "metrics"], "paths"),
        (["--ssl-keyfile", "x"], "ssl_certfile"),
        (["-pcp", "2"], "prefill_context_parallel_size=2"),
    ):
        assert main(["serve", *words]) == 1
        assert part in capsys.readouterr().err
    assert served == []


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["chat", "--transcription-model", "ears"], ["chat", "ears"]),
        (["--model", "chat", "--transcription-model", "ears"], ["chat", "ears"]),
        (["--transcription-model", "ears"], ["demo", "ears"]),
        (["a", "ears", "--transcription-model", "ears"], ["a", "ears"]),
        (["a", "b", "--transcription-model", "ears"], ["a", "b", "ears"]),
    ],
)
def test_a_model_for_transcriptions_is_one_of_several(
    monkeypatch: pytest.MonkeyPatch, words: list[str], names: list[str]
) -> None:
    catalogs: list[Any] = []
    monkeypatch.setattr(serving, "serve", lambda *given: catalogs.append(given[2]) or 0)
    assert main(["serve", *words]) == 0
    [catalog] = catalogs
    assert [entry.names[0] for entry in catalog] == names
    assert [entry.engine.model for entry in catalog] == names
    assert [entry.is_preloaded for entry in catalog] == [True] + [False] * (len(names) - 1)


def test_every_option_of_vllms_server_is_known() -> None:
    arguments = Path(__file__).parents[3] / "tools" / "from_vllm" / "vllm_arguments.json"
    parser = Parser("quire serve")
    serve.configure(parser)
    known = json.loads(arguments.read_text())
    missing = {*known["serve_flags"], *known["flags"]} - set(parser._option_string_actions)
    assert missing == set()


def test_defaults_come_from_vllms_variables(
    served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "9")
    monkeypatch.setenv("VLLM_MAX_STOP_STRINGS", "3")
    words = ["--max-stop-strings", "7", "--allowed-origins", '["http://a", "http://b"]']
    assert main(["serve", "m", *words, "--middleware", "a.B", "--middleware", "c.D"]) == 7
    server = served[1]
    assert (server.keep_alive_timeout, server.max_stop_strings) == (9, 7)
    assert server.allowed_origins == ("http://a", "http://b")
    assert server.middleware == ("a.B", "c.D")


def test_keys_may_be_given_one_by_one(served: list[Any], tmp_path: Path) -> None:
    """All of them count, so that the first is the operator's; those of a file are replaced."""
    file = tmp_path / "options.yaml"
    file.write_text("api-key: [old]\noperator-api-key: [o]\nmiddleware: [a.B]\n")
    words = ["serve", "m", "--config", str(file), "--api-key", "a", "--api-key", "b", "c"]
    assert main([*words, "--api-key=d"]) == 7
    assert served[1].api_key == ("a", "b", "c", "d")
    assert (served[1].operator_api_key, served[1].middleware) == (("o",), ("a.B",))
    assert main([*words[:4], "--middleware", "c.D"]) == 7
    assert served[3].middleware == ("c.D",)


def test_what_is_always_so_passes(served: list[Any]) -> None:
    words = [
        "--enable-server-load-tracking", "--enable-offline-docs", "--h11-max-header-count", "9",
        "--h11-max-incomplete-event-size", "64K", "--no-enable-log-deltas", "--cohere-format", "x",
        "--default-chat-template-kwargs.enable_thinking", "false", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    assert main(["serve", *words]) == 7
    assert served[1].max_header_bytes == 65536
    assert served[1].default_chat_template_kwargs == {"enable_thinking": False}

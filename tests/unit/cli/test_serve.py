"""`quire serve`: which options reach the server and the engine."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cli import main
from quire.config.engine_args import AsyncEngineArgs
from quire.server import serving
from quire.server.args import ServerArgs


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `serve` was called with."""
    calls: list[Any] = []

    def serve(engine_args: AsyncEngineArgs, server_args: ServerArgs) -> int:
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
        (["--ssl-keyfile", "x"], "ssl_certfile"),
        (["-tp", "2"], "tensor_parallel_size=2"),
    ):
        assert main(["serve", *words]) == 1
        assert part in capsys.readouterr().err
    assert served == []

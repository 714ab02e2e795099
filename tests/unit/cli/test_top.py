"""`quire top`: the screen, and a look at a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from quire.cli import main
from quire.cli.commands.top import screen

LATENCY = {"last": 0.03, "p50": 0.02, "p99": 0.05}
LIVE: dict[str, Any] = {
    "state": "ready", "model": "demo", "uptime_s": 3725.0,
    "requests": {"running": 2, "waiting": 1, "max_num_seqs": 128,
                 "finished": {"stop": 5, "length": 0, "abort": 1}},
    "tokens": {"prompt": 9000, "cached": 512, "generation": 450},
    "rates": {"prompt_tokens_per_s": 10.0, "generation_tokens_per_s": 41.5},
    "latency": {"ttft_s": LATENCY, "itl_s": None},
    "prefix_cache": {"queried_tokens": 1000, "hit_tokens": 250,
                     "loaded_tokens": {"disk": 128, "cpu": 0}},
    "kv": {"block_size": 16, "num_blocks": 2048, "free": 2000, "cached": 30, "used": 14,
           "shared": 4, "usage": 0.0088, "blocks_per_cell": 1, "map": "f1000u14s4c30f1000"},
    "preemptions": 3,
    "device": "CUDA on a GPU",
}  # fmt: skip


def test_the_screen() -> None:
    models = [{"id": "demo", "state": "loaded"}, {"id": "\x1b[31mred", "status": {"value": "idle"}}]
    lines = screen(LIVE, models, [0.0, 20.0, 41.5], 100)
    text = "\n".join(lines)
    for part in (
        "demo  ready  up 1 h 2 min",
        "2 running of 128, 1 waiting; finished: 5 stop, 1 abort",
        "41.5 generated, 10.0 of prompts computed",
        " ▄█ most 41.5",
        "first token  last 30 ms, p50 20 ms, p99 50 ms",
        "next token   no request yet",
        "450 generated, 9,000 of prompts, 512 of these from caches",
        "25 % of prompt tokens hit; KV store: 128 from disk",
        "preemptions  3",
        "device       CUDA on a GPU",
        "0.9 % of 2,048 blocks in use: 14 used, 4 shared, 30 cached, 2,000 free",
        "models       demo  loaded",
        "[31mred  idle",
    ):
        assert part in text
    assert "\x1b" not in text
    assert all(len(line) <= 100 for line in lines)
    drawn = [line for line in lines if "█" in line and "most" not in line]
    assert drawn  # the shared blocks are seen, however many blocks a column stands for


@pytest.mark.parametrize("width", [0, 40, 41, 500])
def test_every_width_has_a_screen(width: int) -> None:
    lines = screen(LIVE, [], [1.0] * 1000, width)
    assert all(len(line) <= max(width, 40) for line in lines)


def test_a_state_of_blocks_that_is_not_known() -> None:
    drawn = screen({**LIVE, "kv": {**LIVE["kv"], "map": "u2x3"}}, [], [], 100)
    assert any(line.strip() == "▓▓???" for line in drawn)


def test_a_server_that_loads_its_model() -> None:
    lines = screen({"state": "loading", "model": "m", "uptime_s": 1.0, "kv": None}, [], [], 80)
    assert "The model is being loaded." in lines


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bodies = {"/quire/live": LIVE, "/v1/models": {"data": [{"id": "demo"}]}}
            body = bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_one_look(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", url, "--once"]) == 0
    assert "models       demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changed",
    [{"state": None}, {"uptime_s": "x"}, {"requests": 3}, {"latency": {}}, {"rates": []},
     {"kv": {"map": ""}}],
)  # fmt: skip
def test_a_server_of_another_kind(
    url: str, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in changed.items():
        monkeypatch.setitem(LIVE, name, value)
        if value is None:
            monkeypatch.delitem(LIVE, name)
    assert main(["top", "--url", url, "--once"]) == 1
    assert "/quire/live is not that of a Quire server of version" in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ("loading", "is being loaded"), ("unloading", "is being unloaded"),
        ("unloaded", "is unloaded"), ("failed", "could not be loaded"), ("dead", "is not loaded"),
    ],
)  # fmt: skip
def test_a_model_without_an_engine(state: str, sentence: str) -> None:
    live = {"state": state, "model": "demo", "uptime_s": 1.0, "requests": None}
    assert sentence in "\n".join(screen(live, [], [], 80))

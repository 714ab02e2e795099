"""A server with a tokenizer that the Rust library does not survive: one clear line, or one refused
request; never a death without a word."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from .conftest import StartServer


def with_parts(model: Path, directory: Path, **parts: Any) -> Path:
    """The tiny model with other parts of its tokenizer.json."""
    shutil.copytree(model, directory)
    path = directory / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return directory


def test_one_that_asks_for_all_memory(
    start_server: StartServer, tiny_model: Path, tmp_path: Path
) -> None:
    huge = base64.b64encode(b"\xff\xff\xff\xff" * 100).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": huge}
    model = with_parts(tiny_model, tmp_path / "model", normalizer=normalizer)
    server = start_server(engine={"model": model}, wait=False)
    assert server.wait() == 1
    # How it ends depends on the memory that the machine promises.
    told = rf"{re.escape(str(model))}/tokenizer\.json: the tokenizers library (gives up|needs more)"
    assert re.search(told, server.lines[-1])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_one_that_fails_on_every_text(
    start_server: StartServer, tiny_model: Path, tmp_path: Path, mode: str
) -> None:
    parts = {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    model = with_parts(tiny_model, tmp_path / "model", **parts)
    server = start_server(engine={"model": model}, engine_mode=mode)
    with server.client() as client:
        for path, body in (
            ("/v1/completions", {"prompt": "a text", "max_tokens": 2}),
            ("/v1/completions", {"prompt": "a text", "max_tokens": 2, "stream": True}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ("/tokenize", {"prompt": "a text"}),
        ):
            reply = client.post(path, json=body)
            assert reply.status_code == 400
            assert "cannot encode this text" in reply.text
        body = {"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert client.get("/ready").status_code == 200

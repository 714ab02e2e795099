"""A real server and the command with a tiny random Whisper model: clients, and those that leave."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("openai")

import openai
from running_server import RunningServer, flags
from whisper_files import random_model, write_hf

from quire.images.sound.wav import wav_of

PATH = "/v1/audio/transcriptions"
SIZES = {"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 48}
ENGINE = {"dtype": "float32", "num_threads": 1, "num_gpu_blocks_override": 1000}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_hf(tmp_path_factory.mktemp("whisper") / "model", random_model(**SIZES))
    (path / "generation_config.json").write_text('{"is_multilingual": true}')
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    engine = {**ENGINE, "model": str(model), "served_model_name": "ears"}
    running = RunningServer(engine, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def sound(seconds: float, seed: int = 0) -> bytes:
    numbers = np.random.default_rng(seed).normal(0, 0.2, round(seconds * 16_000))
    return wav_of(numbers.astype(np.float32), 16_000)


def test_the_openai_client_and_the_command_have_the_same_words(
    server: RunningServer, model: Path, tmp_path: Path
) -> None:
    files = {"short.wav": sound(3, 1), "long.wav": sound(41, 2)}
    texts = {}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            options: dict[str, Any] = {"model": "ears", "file": (name, data), "language": "en"}
            options["extra_body"] = {"seed": 1}
            create = client.audio.transcriptions.create
            whole = create(**options, include=["logprobs"], temperature=0.2)
            verbose = create(**options, response_format="verbose_json", temperature=0.2)
            events = [*create(**options, stream=True, temperature=0.2)]
            assert whole.text == verbose.text == events[-1].text
            assert "".join(one.delta for one in events[:-1]) == whole.text
            assert (verbose.language, round(verbose.duration)) == ("english", len(data) // 64_000)
            assert verbose.usage.seconds == whole.usage.seconds == len(data) // 64_000
            spelled = b"".join(bytes(map(int, one.bytes)) for one in whole.logprobs)
            assert spelled.decode(errors="replace").strip() == whole.text
            texts[name] = [one.text.strip() for one in verbose.segments]
        with pytest.raises(openai.BadRequestError, match="must be a file of type"):
            create(model="ears", file=("x.amr", b"#!AMR" + bytes(99)))
    with server.client() as http:
        data = {"response_format": "verbose_json", "language": "de"}
        file = {"file": ("x.wav", files["short.wav"])}
        reply = http.post("/v1/audio/translations", files=file, data=data).raise_for_status()
        assert (reply.json()["task"], reply.json()["language"]) == ("translate", "english")
    assert len({tuple(one) for one in texts.values()}) == 2
    command = [
        sys.executable, "-m", "quire", "transcribe", *files, *flags({"model": model, **ENGINE}),
        "--language", "English", "--format", "json", "--seed", "1", "--temperature", "0.2",
        "--temperature-increment-on-fallback", "0",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    for name in files:
        found = json.loads((tmp_path / name).with_suffix(".json").read_text())
        assert [one["text"].strip() for one in found["segments"]] == texts[name]


@pytest.mark.parametrize(
    "path", ["chat/completions", "completions", "responses", "embeddings", "messages", "/api/chat",
             "/api/generate", "/api/embed", "/completion", "/rerank", "/tokenize"],
)  # fmt: skip
def test_a_request_without_a_sound_names_the_route_for_sounds(
    server: RunningServer, path: str
) -> None:
    message = [{"role": "user", "content": "Hello"}]
    body = {"model": "ears", "messages": message, "max_tokens": 5}
    if path.endswith(("ompletion", "ompletions", "generate")) and "chat" not in path:
        body = {"model": "ears", "prompt": "Hello"}
    if path.endswith(("embeddings", "embed", "responses")):
        body = {"model": "ears", "input": "Hello"}
    if path == "/rerank":
        body = {"model": "ears", "query": "Hello", "documents": ["you"]}
    with server.client() as client:
        reply = client.post(path if path[0] == "/" else f"/v1/{path}", json=body)
    assert reply.status_code == 400
    assert "POST /v1/audio/transcriptions" in reply.text


def test_the_command_for_chats_names_the_one_for_sounds(model: Path) -> None:
    command = [sys.executable, "-m", "quire", "run", str(model), "Hello"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "quire transcribe" in found.stderr


@pytest.mark.long
def test_clients_that_leave_leave_nothing(server: RunningServer) -> None:
    with server.client() as client:
        form = client.build_request(
            "POST", PATH, files={"file": ("x.wav", sound(300))}, data={"stream": "true"}
        )
    server.check_leaving(form, 6, 12, 0.2)
    with server.client() as client:
        file = {"file": ("x.wav", sound(1))}
        reply = client.post(PATH, files=file, data={"response_format": "srt"})
        assert reply.is_success, reply.text
        for path in ("/v1/chat/completions", "/v1/completions"):
            body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
            assert client.post(path, json=body).status_code == 400, path
        assert client.get("/health").is_success

"""Audio against a real server: spellings of a sound, and hostile files, which are errors 400."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from running_server import RunningServer

from quire.images.sound.wav import wav_of

_TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'audio' %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>{% endif %}{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from vision_cases import SOUND_CASES

    path: Path = tmp_path_factory.mktemp("sounds") / "model"
    SOUND_CASES["qwen2-audio"](path)
    (path / "chat_template.jinja").write_text(_TEMPLATE)
    engine = {
        "model": str(path), "dtype": "float32", "max_model_len": 256, "num_threads": 1,
        "num_gpu_blocks_override": 100, "served_model_name": "ears",
    }  # fmt: skip
    running = RunningServer(engine, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def _sound(seconds: float, seed: int = 0) -> bytes:
    numbers = np.random.default_rng(seed).normal(0, 0.2, int(seconds * 16000))
    return wav_of(numbers.astype(np.float32), 16000)


def _input_audio(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": _text(data), "format": "wav"}}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _body(*parts: dict[str, Any]) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "What is said?"}]
    messages = [{"role": "user", "content": content}]
    return {"model": "ears", "max_tokens": 6, "temperature": 0, "messages": messages}


def test_sounds_are_heard_and_found_again(server: RunningServer) -> None:
    url = f"data:audio/wav;base64,{_text(_sound(0.9))}"
    spellings: list[dict[str, Any]] = [
        _input_audio(_sound(0.9)),
        {"type": "audio_url", "audio_url": {"url": url}, "uuid": "a"},
        {"type": "audio_url", "audio_url": url},
    ]
    with server.client() as client:
        replies = [
            client.post("/v1/chat/completions", json=_body(one)).raise_for_status().json()
            for one in (*spellings, _input_audio(_sound(0.9, 1)))
        ]
    texts = [one["choices"][0]["message"]["content"] for one in replies]
    assert texts[0] == texts[1] == texts[2] != texts[3]
    # 90 frames are 22 rows.
    assert replies[0]["usage"]["prompt_tokens"] == 22 + 2 + len("What is said?")


def test_hostile_files_are_errors_400(server: RunningServer) -> None:
    chooser, good = random.Random(3), _sound(0.5)
    files = [b"", b"ID3", b"RIFF", good[:20], good[:-1], _sound(2), _sound(0.01), bytes(1 << 20)]
    with server.client() as client:
        for data in files:
            reply = client.post("/v1/chat/completions", json=_body(_input_audio(data)))
            assert reply.status_code == 400, reply.text
        for _ in range(40):
            changed = bytearray(good)
            for _ in range(3):
                changed[chooser.randrange(60)] = chooser.randrange(256)
            reply = client.post("/v1/chat/completions", json=_body(_input_audio(bytes(changed))))
            assert reply.status_code in (200, 400), reply.text
        for part in (
            {"type": "input_audio"},
            {"type": "input_audio", "input_audio": {"data": 3}},
            {"type": "input_audio", "input_audio": {"data": "a b", "format": "wav"}},
            {"type": "audio_url", "audio_url": {"url": "http://localhost/a.wav"}},
            {"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}},
            {"type": "audio_url", "audio_url": {"url": 3}},
            {"type": "audio_embeds", "audio_url": "x"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ):
            reply = client.post("/v1/chat/completions", json=_body(part))
            assert reply.status_code == 400, reply.text
        reply = client.post("/v1/audio/transcriptions", files={"file": good})
        assert reply.status_code == 400, reply.text
        assert "this one was not: it hears it in chats" in reply.text
        assert client.post("/v1/chat/completions", json=_body(_input_audio(good))).is_success

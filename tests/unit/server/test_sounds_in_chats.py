"""Sounds in chats with a model that hears none: their words, if the operator asked for that."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from fake_speech import FakeSpeech

from .conftest import Harness, MakeHarness

CHAT = "/v1/chat/completions"
SOUND = {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF").decode()}}


@pytest.fixture
def harness(make_harness: MakeHarness) -> Harness:
    return with_ears(make_harness(transcription_model="ears"))


def with_ears(harness: Harness) -> Harness:
    """The server with a second model, which hears."""
    ears = harness.context.add_model(("ears",))
    ears.engine, ears.transcriber = harness.model.engine, FakeSpeech()
    return harness


def ask(harness: Harness, *parts: dict[str, Any], **fields: Any) -> Any:
    messages = [{"role": "user", "content": [{"type": "text", "text": "say"}, *parts]}]
    return harness.post(CHAT, {"messages": messages, "max_tokens": 2, **fields})


def test_the_model_is_given_the_words(harness: Harness) -> None:
    words = {"type": "text", "text": "Hello there. How are you?"}
    found = ask(harness, SOUND)
    assert found.status_code == 200, found.text
    written, spoken = ask(harness, words).json(), found.json()
    assert spoken["usage"] == written["usage"]
    assert spoken["choices"] == written["choices"]
    speech = harness.context.models[1].transcriber
    assert (speech.sounds, speech.num_open) == ([b"RIFF"], 0)
    url = {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,UklGRitl"}}
    stream = ask(harness, SOUND, url, stream=True)
    assert stream.text.endswith("data: [DONE]\n\n")
    assert speech.sounds == [b"RIFF", b"RIFF+e"]  # that of the message before is kept


def test_words_are_kept_for_each_tenant_within_a_bound(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.server.generation.spoken.MOST_KEPT", 2)
    speech = harness.context.models[1].transcriber
    for salt in ("a", "b", "a", "c", "b"):
        assert ask(harness, SOUND, cache_salt=salt).status_code == 200
        assert len(harness.context.heard) <= 2
    assert len(speech.sounds) == 4  # "b" made room for "c"


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ({"type": "input_audio", "input_audio": {"data": "YmFk"}}, "must be a file of type WAV"),
        ({"type": "input_audio", "input_audio": {"data": "!"}}, "base64"),
        ({"type": "input_audio", "input_audio": {"data": 3}}, "must be a string"),
        ({"type": "input_audio"}, "must have the URL of audio"),
        ({"type": "audio_url", "audio_url": {"url": "http://a.example/x"}}, "content[1]"),
        ({"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}}, "content[1]"),
    ],
)
def test_a_sound_that_cannot_be_read_is_named(
    harness: Harness, part: dict[str, Any], error: str
) -> None:
    reply = ask(harness, part)
    assert reply.status_code == 400, reply.text
    assert error in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == "messages"


def test_it_is_refused_unless_the_operator_asked_for_it(make_harness: MakeHarness) -> None:
    reply = ask(with_ears(make_harness()), SOUND)
    assert reply.status_code == 400
    assert "takes no images and no audio" in reply.text


def test_a_model_that_writes_no_words_is_named(harness: Harness) -> None:
    harness.context.models[1].transcriber = None
    assert "ears is not of Whisper's kind" in ask(harness, SOUND).text

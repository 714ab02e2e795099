"""Sounds on the page: recorded with a browser's false microphone, chosen, transcribed, and sent."""

from __future__ import annotations

import base64
import os
import re
import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_actions import ask

from quire.images.sound.wav import wav_of

from .conftest import FLAGS, chromium

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def tone() -> bytes:
    """A sound of two seconds."""
    times = np.arange(96_000) / 48_000
    return wav_of((0.5 * np.sin(2 * np.pi * 440 * times)).astype(np.float32), 48_000)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser that hears a file in place of a microphone."""
    heard = tmp_path_factory.mktemp("sounds") / "heard.wav"
    heard.write_bytes(tone())
    with chromium([
        *FLAGS, "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={heard}",
    ]) as browser:  # fmt: skip
        yield browser


def picture(page: Any, name: str) -> None:
    """A picture of the page, if they are asked for."""
    if folder := os.environ.get("QUIRE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png")


def fields_of(body: bytes) -> dict[str, bytes]:
    """The fields of a form, and the bytes of its file."""
    parts = re.split(rb"\r\n--|^--", body.partition(b"\r\n")[2])
    found = re.compile(rb'name="(\w+)"[^\r]*\r\n(?:[^\r]+\r\n)*\r\n(.*)', re.DOTALL)
    pairs = [one for part in parts if (one := found.search(part))]
    return {one[1].decode(): one[2] for one in pairs}


def is_tone(file: bytes) -> bool:
    """Whether a WAV file of 16 kHz has a tone of 440 Hz."""
    with wave.open(BytesIO(file)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (16_000, 1, 2)
        samples = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
    strength = np.abs(np.fft.rfft(samples))
    return bool(abs(np.argmax(strength) * 16_000 / len(samples) - 440) < 15)


def record(page: Any, button: str) -> None:
    page.click(button)
    page.wait_for_selector(f"{button}[aria-pressed=true]")
    page.wait_for_selector("text=Recording: 0:01")
    page.click(button)


@pytest.mark.parametrize(("scheme", "size"), [("light", {}), ("dark", PHONE)])
def test_a_recording_is_transcribed(
    open_page: Any, server: Any, scheme: str, size: dict[str, Any]
) -> None:
    server.script.transcribes = True
    page = open_page(color_scheme=scheme, **size)
    page.wait_for_selector("#speech")
    picture(page, f"speech-empty-{scheme}")
    page.fill("#speech-language", "de")
    page.select_option("#speech-task", "translations")
    server.script.delay_s = 0.5
    record(page, "#speech-record")
    page.wait_for_selector("#segments li >> nth=1")
    page.wait_for_selector("#speech-bar:visible")
    picture(page, f"speech-running-{scheme}")
    page.wait_for_selector("#speech-save:visible")
    assert page.locator("#speech-note").inner_text() == "1:02:05 of English"
    assert page.locator("#segments li").all_inner_texts()[2].split() == ["1:01", "again."]
    picture(page, f"speech-done-{scheme}")
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert width <= 0
    [(path, body)] = server.script.forms
    fields = fields_of(body)
    assert path == "/v1/audio/translations"
    assert is_tone(fields.pop("file"))
    assert fields == {
        "model": b"quire-demo", "response_format": b"verbose_json", "stream": b"true",
        "language": b"de",
    }  # fmt: skip


def test_a_file_is_transcribed_and_saved(open_page: Any, server: Any, tmp_path: Path) -> None:
    server.script.transcribes = True
    page = open_page()
    file = tmp_path / "my talk.wav"
    file.write_bytes(tone())
    page.wait_for_selector("#speech")
    page.set_input_files("#sound-input", file)
    page.wait_for_selector("#speech-save:visible")
    assert fields_of(server.script.forms[0][1])["file"] == file.read_bytes()
    saved = {}
    for kind in ("txt", "srt", "vtt"):
        with page.expect_download() as waiting:
            page.click(f"#speech-{kind}")
        assert waiting.value.suggested_filename == f"my talk.{kind}"
        saved[kind] = waiting.value.path().read_text()
    assert saved["txt"] == "Good morning.\nThe ferry is late,\nagain.\n"
    assert saved["srt"].startswith("1\n00:00:00,000 --> 00:00:02,500\nGood morning.\n\n2\n")
    assert saved["vtt"].endswith("3\n00:01:01.000 --> 01:02:05.500\nagain.\n\n")
    page.click("#segments li:nth-child(2) .time")
    assert page.evaluate("document.getElementById('sound').currentTime") >= 1.9
    server.script.refusal = (400, "the audio must be a file of type WAV")
    page.set_input_files("#sound-input", file)
    page.wait_for_selector("#speech-note.error:has-text('file of type WAV')")
    assert page.locator("#segments li").count() == 0
    server.script.refusal, server.script.delay_s = None, 5
    page.set_input_files("#sound-input", file)
    page.wait_for_selector("#segments li")
    page.click("#speech-stop")
    page.wait_for_selector("#speech-note:has-text('Stopped.')")
    assert server.script.closed_early.wait(10)


def test_a_chat_takes_recordings(open_page: Any, server: Any, tmp_path: Path) -> None:
    page = open_page()
    page.wait_for_selector("#attach:visible")
    assert page.locator("#record:visible").count() == 0
    file = tmp_path / "a.wav"
    file.write_bytes(tone())
    page.set_input_files("#image-input", file)
    page.wait_for_selector("#attach-note:has-text('takes no audio')")
    server.script.takes_audio = True
    page.reload()
    page.wait_for_selector("#record:visible")
    record(page, "#record")
    page.wait_for_selector("#attachments li")
    page.set_input_files("#image-input", file)
    page.wait_for_selector("#attachments li >> nth=1")
    picture(page, "sounds-attached")
    ask(page, "What is said?")
    picture(page, "sounds-sent")
    [message] = server.script.requests[-1]["messages"]
    first, second, text = message["content"]
    assert text == {"type": "input_text", "text": "What is said?"}
    assert first["type"] == second["type"] == "input_audio"
    assert second["input_audio"]["format"] == "wav"
    assert base64.b64decode(second["input_audio"]["data"]) == file.read_bytes()
    assert is_tone(base64.b64decode(first["input_audio"]["data"]))
    page.reload()
    page.wait_for_selector(".message.user audio >> nth=1")
    assert page.locator(".message.user audio").first.get_attribute("aria-label") == "recording.wav"


def test_a_denied_microphone_is_told(open_page: Any, server: Any) -> None:
    server.script.takes_audio = True
    denied = "Promise.reject(new DOMException('', 'NotAllowedError'))"
    denied = f"navigator.mediaDevices.getUserMedia = () => {denied}"
    page = open_page(init_script=denied)
    page.click("#record")
    page.wait_for_selector("#attach-note:has-text('does not let this page use the microphone')")

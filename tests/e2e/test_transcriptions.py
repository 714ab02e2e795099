"""`/v1/audio/transcriptions` of a real server: the openai client, and bodies that are an attack."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("openai")

import openai
from running_server import RunningServer, flags

from quire import LLM, SamplingParams
from quire.cli import main
from quire.images.sound.wav import wav_of

PATH = "/v1/audio/transcriptions"
ENGINE = {
    "dtype": "float32", "max_model_len": 1024, "num_threads": 1, "num_gpu_blocks_override": 200,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vision_cases import SOUND_CASES

    path: Path = tmp_path_factory.mktemp("sounds") / "model"
    SOUND_CASES["voxtral"](path)
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    engine = {**ENGINE, "model": str(model), "served_model_name": "ears"}
    running = RunningServer(engine, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        yield client


def _sound(seconds: float, seed: int = 0, rate: int = 16000) -> bytes:
    numbers = np.random.default_rng(seed).normal(0, 0.2, round(seconds * rate))
    return wav_of(numbers.astype(np.float32), rate)


def test_the_command_prints_the_words_of_the_route(
    model: Path, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(_sound(1.0))
    with file.open("rb") as sound:
        wanted = client.audio.transcriptions.create(model="ears", file=sound, language="fr").text
    words = ["transcribe", str(file), "--model", str(model), "--disable-tqdm"]
    engine = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
    assert main([*words, *engine, "--language", "French"]) == 0
    found = capsys.readouterr().out  # without what a terminal must not get
    assert [*filter(str.isalnum, found)] == [*filter(str.isalnum, wanted)]
    for option in (
        "--format=srt",
        "--no-condition-on-previous-text",
        "--condition-on-previous-text",
        "--temperature-increment-on-fallback=0",
    ):
        assert main([*words, *engine, option]) == 1
        name = option.partition("=")[0]
        assert f"{name} needs a model of Whisper's kind" in capsys.readouterr().err


def test_the_words_are_those_of_the_prompt_written_by_hand(
    model: Path, client: Any, tmp_path: Path
) -> None:
    sounds = [_sound(0.7), _sound(2.3, 1), _sound(0.5, 2, 44_100)]
    cases = [
        (sounds[0], None, {}),
        (sounds[1], "fr", {}),
        (sounds[2], "en", {"temperature": 1.0, "seed": 3, "top_p": 0.9, "top_k": 20}),
        (sounds[2], None, {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.2}),
    ]
    found = []
    for sound, language, options in cases:
        extra = {name: value for name, value in options.items() if name != "temperature"}
        path = tmp_path / "x.wav"
        path.write_bytes(sound)
        with path.open("rb") as file:
            reply = client.audio.transcriptions.create(
                model="ears", file=file, language=language or openai.omit,
                temperature=options.get("temperature", openai.omit),
                extra_body={"max_completion_tokens": 12, **extra},
            )  # fmt: skip
        found.append((reply.text, reply.usage.seconds))
    with LLM(str(model), **ENGINE) as llm:
        for (sound, language, options), (text, seconds) in zip(cases, found, strict=True):
            spoken = "" if language is None else f"lang:{language}"
            prompt = f"[INST][BEGIN_AUDIO][AUDIO][/INST]{spoken}[TRANSCRIBE]"
            params = SamplingParams(max_tokens=12, **{"temperature": 0, **options})
            given = {"prompt": prompt, "multi_modal_data": {"audio": sound}}
            [output] = llm.generate(given, params, use_tqdm=False)
            assert output.outputs[0].text == text
            assert seconds == (3 if sound is sounds[1] else 1)
    assert len({text for text, _ in found}) == len(cases)


def test_streams_and_options_work(server: RunningServer, client: Any) -> None:
    file = ("x.wav", _sound(1.4, 5))

    def ask(**options: Any) -> Any:
        extra = {"max_completion_tokens": 9, **options.pop("extra_body", {})}
        return client.audio.transcriptions.create(
            model="ears", file=file, extra_body=extra, **options
        )

    whole = ask()
    assert ask(response_format="text") == whole.text
    with server.client() as http:
        options = {"response_format": "text", "max_completion_tokens": "9"}
        reply = http.post(PATH, files={"file": file}, data=options).raise_for_status()
    assert (reply.headers["content-type"], reply.text) == (
        "text/plain; charset=utf-8", whole.text,
    )  # fmt: skip
    usage = {"stream_include_usage": True, "stream_continuous_usage_stats": True}
    for extra in ({}, usage):
        events = list(ask(stream=True, response_format="text", extra_body=extra))
        deltas = [one.delta for one in events if one.type == "transcript.text.delta"]
        assert "".join(deltas) == whole.text
        assert [one.text for one in events if one.type == "transcript.text.done"] == [whole.text]
        chunks = [one.model_dump() for one in events]
        last = chunks.pop() if extra else None
        assert "".join(one["choices"][0]["delta"]["content"] for one in chunks) == whole.text
        assert {one["object"] for one in chunks} == {"transcription.chunk"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        if last is not None:
            counts = last["usage"]
            assert (last["choices"], counts["completion_tokens"]) == ([], 9)
            # Two parts of a second with 10 rows each, and four other tokens.
            assert counts["prompt_tokens"] == 2 * 10 + 4
            assert chunks[-1]["usage"]["completion_tokens"] == 9
    beams = ask(extra_body={"use_beam_search": True, "n": 3})
    assert isinstance(beams.text, str)
    with server.client() as http:
        data = {"prompt": "Hello", "hotwords": "Quire", "chunking_strategy": "auto", "n": "2"}
        reply = http.post(PATH, files={"file": file}, data=data).raise_for_status()
        ignored = reply.headers["x-quire-ignored-fields"]
        assert ignored == "chunking_strategy, prompt, hotwords, n"
        data = {"condition_on_previous_text": "false", "stream": "true"}
        data["stream_continuous_usage_stats"] = "true"
        reply = http.post(PATH, files={"file": file}, data=data).raise_for_status()
        ignored = reply.headers["x-quire-ignored-fields"]
        assert ignored == "condition_on_previous_text, stream_continuous_usage_stats"
        assert http.post("/v1/realtime", files={"file": file}).status_code == 404
        reply = http.post("/v1/audio/translations", files={"file": file})
        assert "need a model of Whisper" in reply.text
        by_language = []
        for language in ("", "de", "German", " GERMAN ", "DE"):
            data = {"language": language, "max_completion_tokens": "9"}
            reply = http.post(PATH, files={"file": file}, data=data).raise_for_status()
            by_language.append(reply.json()["text"])
        assert by_language[0] != by_language[1]
        assert set(by_language[1:]) == {by_language[1]}
    with pytest.raises(openai.BadRequestError, match="Unsupported language: 'hh'"):
        ask(language="hh")
    with pytest.raises(openai.BadRequestError, match="must be a file of type"):
        client.audio.transcriptions.create(model="ears", file=("x.amr", b"#!AMR" + bytes(99)))
    with pytest.raises(openai.BadRequestError, match="must be json or text, got verbose_json"):
        ask(response_format="verbose_json")
    with pytest.raises(openai.NotFoundError, match="`mouth` does not exist"):
        client.audio.transcriptions.create(model="mouth", file=file)
    metrics = server.metrics()
    assert metrics[f'http_requests_total{{handler="{PATH}",method="POST",status="2xx"}}'] >= 7


def test_replies_and_events_have_logprobs_if_include_has_them(client: Any) -> None:
    options: dict[str, Any] = {
        "model": "ears", "file": ("x.wav", _sound(1.4, 5)), "include": ["logprobs"],
        "extra_body": {"max_completion_tokens": 9},
    }  # fmt: skip
    create = client.audio.transcriptions.create
    whole = create(**options)
    assert len(whole.logprobs) == 9
    assert all(one.logprob <= 0 for one in whole.logprobs)
    spelled = b"".join(bytes(map(int, one.bytes)) for one in whole.logprobs)
    assert spelled.decode(errors="replace") == whole.text
    events = list(create(stream=True, **options))
    deltas = [one for one in events if one.type == "transcript.text.delta"]
    parts = [one.model_dump() for event in deltas for one in event.logprobs]
    done = [one.model_dump() for one in events[-1].logprobs]
    assert events[-1].type == "transcript.text.done"
    assert done == [one.model_dump() for one in whole.logprobs]
    assert parts == done[: len(parts)]
    assert len(parts) >= 8
    assert create(**{**options, "include": []}).logprobs is None
    for wrong, error in (
        ({"include": ["words"]}, "must be one of 'logprobs'"),
        ({"response_format": "text"}, "does not work with response_format=text"),
        ({"extra_body": {"use_beam_search": True}}, "does not work with use_beam_search"),
        ({"timestamp_granularities": ["word"]}, "needs response_format=verbose_json"),
        ({"response_format": "srt", "include": []}, "must be json or text, got srt"),
    ):
        with pytest.raises(openai.BadRequestError, match=error):
            create(**{**options, **wrong})


def test_every_type_of_file_is_heard(client: Any) -> None:
    pytest.importorskip("av")
    from sound_files import TYPES, sound_file

    samples = np.random.default_rng(1).normal(0, 4000, (24_000, 2)).astype(np.int16)
    head = struct.pack("<IHHIIHH", 16, 1, 2, 48_000, 192_000, 4, 16)
    size = struct.pack("<I", samples.nbytes)
    files = {"wav": b"RIFF\0\0\0\0WAVEfmt " + head + b"data" + size + samples.tobytes()}
    files |= {kind: sound_file(kind, samples) for kind in TYPES}
    texts = {}
    for kind, data in files.items():
        reply = client.audio.transcriptions.create(
            model="ears", file=(f"x.{kind}", data), extra_body={"max_completion_tokens": 9}
        )
        assert reply.usage.seconds == 1
        texts[kind] = reply.text
    assert texts["wav"] == texts["flac"] == texts["mp4"]  # without loss


def test_batches_have_the_audio_at_a_url(model: Path, client: Any, tmp_path: Path) -> None:
    sound = _sound(1.4, 5)
    url = f"data:audio/wav;base64,{base64.b64encode(sound).decode()}"
    options = {"max_completion_tokens": 9, "temperature": 0.0, "seed": 1, "language": None}
    bodies: list[dict[str, Any]] = [
        {"file_url": url, **options},
        {"file_url": "file:///etc/passwd"},
        {"file_url": 3},
        {},
        {"file_url": url, "prompt": "\ud800"},
        {"file_url": url, 'x"\r\n\r\n': "y"},
        {"file_url": url, "response_format": ["srt"]},
    ]
    lines = [{"custom_id": str(at), "url": PATH, "body": one} for at, one in enumerate(bodies)]
    (tmp_path / "in").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = [sys.executable, "-m", "quire", "run-batch", "-i", "in", "-o", "out"]
    subprocess.run([*command, *flags({"model": model, **ENGINE})], cwd=tmp_path, check=True)
    replies = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    extra = {"max_completion_tokens": 9}
    wanted = client.audio.transcriptions.create(model="ears", file=sound, extra_body=extra)
    assert replies[0]["response"]["body"]["text"] == wanted.text
    codes = [one["response"]["status_code"] for one in replies]
    assert codes == [200, 400, 400, 400, 400, 200, 400]  # a strange name is that of no field


@pytest.mark.long
def test_no_body_breaks_it(server: RunningServer) -> None:
    chooser = random.Random(7)
    good = httpx.Request("POST", "http://a", data={"language": "en"}, files={"file": _sound(0.1)})
    content, headers = good.read(), {"content-type": good.headers["content-type"]}
    with server.client() as client:
        for _ in range(150):
            body = bytearray(content)
            for _ in range(chooser.randint(1, 6)):
                at = chooser.choice([chooser.randrange(len(body)), chooser.randrange(300)])
                match chooser.randrange(3):
                    case 0:
                        body[at] = chooser.randrange(256)
                    case 1:
                        del body[at : at + chooser.randrange(200)]
                    case _:
                        body[at:at] = body[: chooser.randrange(300)]
            reply = client.post(PATH, content=bytes(body), headers=headers)
            assert reply.status_code in (200, 400), reply.text
        huge = iter([content[:-9], *[bytes(1 << 20)] * 600])
        with suppress(httpx.WriteError):  # the server has answered, and ended the connection
            assert client.post(PATH, content=huge, headers=headers).status_code == 413
        assert client.get("/health").is_success
        reply = client.post(PATH, content=content, headers=headers)
        assert reply.is_success, reply.text


def test_clients_that_leave_leave_nothing(server: RunningServer) -> None:
    form = httpx.Request("POST", f"http://a{PATH}", files={"file": ("x.wav", _sound(40))})
    server.check_leaving(form, 8, 24, 0.05)
    with server.client() as client:
        file = {"file": io.BytesIO(_sound(0.5))}
        assert client.post(PATH, files=file, data={"max_completion_tokens": 4}).is_success

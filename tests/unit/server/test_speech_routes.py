"""`/v1/audio/transcriptions` and `/v1/audio/translations` with a model that gives times."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_speech import TEXTS, FakeSpeech
from small_disk import small_disk

from .conftest import Harness, MakeHarness

PATH = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
FILE = ("file", ("talk.wav", b"RIFF"))
TEXT = "Hello there. How are you?"


def form(fields: dict[str, Any], sound: bytes = b"RIFF") -> dict[str, Any]:
    """The options of a request with a form."""
    texts = [
        (name, (None, str(one)))
        for name, value in fields.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    return {"files": [("file", ("talk.wav", sound)), *texts]}


@pytest.fixture
def speech(harness: Harness) -> FakeSpeech:
    harness.model.transcriber = FakeSpeech()
    return harness.model.transcriber


def ask(harness: Harness, path: str = PATH, **fields: Any) -> httpx.Response:
    return harness.request("POST", path, **form(fields))


@pytest.mark.usefixtures("speech")
def test_every_format_has_its_type_and_text(harness: Harness) -> None:
    reply = ask(harness)
    assert reply.json() == {"text": TEXT, "usage": {"type": "duration", "seconds": 7}}
    assert reply.headers["content-type"] == "application/json"
    assert "x-quire-ignored-fields" not in reply.headers
    reply = ask(harness, response_format="text")
    assert (reply.text, reply.headers["content-type"]) == (TEXT, "text/plain; charset=utf-8")
    reply = ask(harness, response_format="srt")
    assert reply.text.startswith("1\n00:00:00,000 --> 00:00:02,000\nHello there.\n\n2\n")
    reply = ask(harness, response_format="vtt")
    assert reply.text.startswith("WEBVTT\n\n00:00.000 --> 00:02.000\nHello there.\n")
    assert reply.headers["content-type"] == "text/vtt; charset=utf-8"
    verbose = ask(harness, response_format="verbose_json").json()
    assert {name: verbose[name] for name in ("task", "language", "duration", "text")} == {
        "task": "transcribe", "language": "french", "duration": 6.25, "text": TEXT,
    }  # fmt: skip
    assert [one["text"] for one in verbose["segments"]] == list(TEXTS)
    assert "words" not in verbose


def test_the_document_has_all_types_of_replies(harness: Harness) -> None:
    paths = harness.request("GET", "/openapi.json").json()["paths"]
    for path in (PATH, TRANSLATIONS):
        assert {*paths[path]["post"]["responses"]["200"]["content"]} == {
            "application/json", "text/plain", "text/vtt", "text/event-stream",
        }  # fmt: skip


def test_granularities_choose_words_and_segments(harness: Harness, speech: FakeSpeech) -> None:
    options = {"response_format": "verbose_json"}
    words = ask(harness, **options, **{"timestamp_granularities[]": ["word"]}).json()
    assert words["words"][1] == {"word": "there.", "start": 1.0, "end": 1.5}
    assert "segments" not in words
    both = ask(harness, **options, **{"timestamp_granularities[]": ["word", "segment"]}).json()
    assert (len(both["words"]), len(both["segments"])) == (5, 3)
    assert [options.word_timestamps for _, options in speech.asked] == [True, True]


def test_translations_are_english(harness: Harness, speech: FakeSpeech) -> None:
    reply = ask(harness, TRANSLATIONS, response_format="verbose_json", language="German").json()
    assert (reply["task"], reply["language"]) == ("translate", "english")
    [(_, options)] = speech.asked
    assert (options.task, options.language) == ("translate", "de")


def test_fields_become_options(harness: Harness, speech: FakeSpeech) -> None:
    ask(
        harness, language="FRENCH", prompt="Quire", temperature=0.4, seed=7, vad_filter="true",
        condition_on_previous_text="false", max_completion_tokens=9,
    )  # fmt: skip
    ask(harness, language="auto", temperature=0)
    first, second = (options for _, options in speech.asked)
    assert (first.language, first.initial_prompt, first.temperatures) == ("fr", "Quire", (0.4,))
    assert (first.seed, first.vad_filter, first.max_tokens) == (7, True, 9)
    assert not first.condition_on_previous_text
    assert (second.language, len(second.temperatures)) == (None, 6)
    assert second.condition_on_previous_text
    reply = ask(harness, top_p=0.5, hotwords="a", beam_size=5, vllm_xargs="{}", n=2)
    names = reply.headers["x-quire-ignored-fields"].split(", ")
    assert sorted(names) == ["beam_size", "hotwords", "n", "top_p", "vllm_xargs"]


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.usefixtures("speech")
def test_a_stream_has_the_text_as_it_is_found(harness: Harness) -> None:
    found = events(ask(harness, stream="true"))
    kinds = [one["type"].rpartition(".")[2] for one in found]
    assert kinds == ["delta", "delta", "delta", "done"]
    assert "".join(one["delta"] for one in found[:3]) == TEXT == found[3]["text"]
    assert [one["choices"][0]["delta"]["content"] for one in found[:3]] == [
        one["delta"] for one in found[:3]
    ]
    assert found[3]["choices"][0]["finish_reason"] == "stop"
    assert {one["object"] for one in found} == {"transcription.chunk"}
    found = events(
        ask(
            harness, TRANSLATIONS, stream="true", response_format="verbose_json",
            stream_include_usage="true", **{"timestamp_granularities[]": "word"},
        )
    )  # fmt: skip
    segments = [one for one in found if one["type"] == "transcript.text.segment"]
    assert [(one["id"], one["start"], one["end"]) for one in segments] == [
        ("seg_0", 0.0, 2.0), ("seg_1", 2.0, 4.0), ("seg_2", 4.0, 6.0),
    ]  # fmt: skip
    assert segments[0]["words"][0] == {"word": "Hello", "start": 0.0, "end": 0.5}
    assert (found[-2]["language"], found[-2]["duration"]) == ("english", 6.25)
    assert found[-1]["usage"]["completion_tokens"] == 6
    assert found[-1]["object"] == "translation.chunk"


def test_logprobs_are_those_of_text(harness: Harness, speech: FakeSpeech) -> None:
    tokenizer = harness.model.engine.tokenizer
    ids = tuple(tokenizer.encode(" hello", add_special_tokens=False))
    speech.token_ids = (*ids, tokenizer.max_token_id + 5)  # such as a timestamp
    reply = ask(harness, **{"include[]": "logprobs"}).json()
    assert len(reply["logprobs"]) == 3 * len(ids)
    assert {one["logprob"] for one in reply["logprobs"]} == {-0.5}
    found = events(ask(harness, stream="true", **{"include[]": "logprobs"}))
    assert found[-1]["logprobs"] == reply["logprobs"]
    assert [each for one in found[:-1] for each in one["logprobs"]] == reply["logprobs"]


@pytest.mark.parametrize(
    ("fields", "param", "error"),
    [
        ({"response_format": "ass"}, "response_format", "json, srt, text, verbose_json"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "verbose_json"),
        ({"timestamp_granularities[]": "a"}, "timestamp_granularities[0]", "'segment', 'word'"),
        ({"include[]": "logprobs", "response_format": "srt"}, "include", "needs json"),
        ({"language": "xx"}, "language",
         "Must be one of ['de', 'en', 'fr'], or the English name of one of them, such as 'german'"),
        ({"temperature": "1.5"}, "temperature", "from 0 to 1, got 1.5"),
        ({"temperature": "-1"}, "temperature", "from 0 to 1"),
        ({"temperature": "nan"}, "temperature", "from 0 to 1"),
        ({"max_completion_tokens": "0"}, "max_completion_tokens", "at least 1"),
        ({"use_beam_search": "true"}, "use_beam_search", "no beams"),
        ({"stream": "true", "response_format": "vtt"}, "response_format", "json, text or verbose"),
        ({"stream_include_usage": "true"}, "stream_include_usage", "Stream options"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    harness: Harness, speech: FakeSpeech, fields: dict[str, str], param: str, error: str
) -> None:
    reply = ask(harness, **fields)
    assert reply.status_code == 400, reply.text
    found = reply.json()["error"]
    assert error in found["message"]
    assert found["param"] == param
    assert not speech.asked


@pytest.mark.usefixtures("speech")
def test_a_file_that_cannot_be_read_is_an_error(harness: Harness) -> None:
    for fields in ({}, {"stream": "true"}):
        reply = harness.request("POST", PATH, **form(fields, b"bad"))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "file")


def test_a_model_of_english_alone_does_not_translate(harness: Harness, speech: FakeSpeech) -> None:
    speech.languages = ("en",)  # type: ignore[assignment]
    assert "English alone" in ask(harness, TRANSLATIONS).text


def test_other_models_refuse_what_they_cannot_do(harness: Harness) -> None:
    reply = ask(harness, TRANSLATIONS)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    for format in ("srt", "vtt", "verbose_json"):
        reply = ask(harness, response_format=format)
        assert f"must be json or text, got {format}" in reply.json()["error"]["message"]


def test_large_files_are_not_kept_in_memory(make_harness: MakeHarness) -> None:
    harness = make_harness(
        max_form_bytes=6 << 20, max_body_bytes=1000, max_pending_body_bytes=2 << 20
    )
    speech = harness.model.transcriber = FakeSpeech()
    sound = bytes(range(256)) * (20 << 10)
    for fields in ({}, {"stream": "true"}):
        assert harness.request("POST", PATH, **form(fields, sound)).is_success
        place = speech.asked[-1][0]
        assert speech.sounds.pop() == sound
        assert not isinstance(place, bytes)
        assert not place.exists()
    assert harness.context.uploads._num_bytes == 0
    reply = harness.request("POST", PATH, **form({}, sound * 2))
    assert (reply.status_code, "max_form_bytes" in reply.text) == (413, True)
    harness.context.uploads._max_bytes = 5 << 20
    assert harness.request("POST", PATH, **form({}, sound)).status_code == 503
    assert harness.context.uploads._num_bytes == 0


def test_a_deadline_ends_it(harness: Harness) -> None:
    speech = harness.model.transcriber = FakeSpeech(step_s=5)
    headers = {"x-request-timeout": "0.05"}
    reply = harness.request("POST", PATH, headers=headers, **form({}))
    assert (reply.status_code, speech.num_open) == (503, 0)
    reply = harness.request("POST", PATH, headers=headers, **form({"stream": "true"}))
    assert "deadline" in reply.text
    assert speech.num_open == 0


async def test_the_openai_client_reads_all_replies(harness: Harness, speech: FakeSpeech) -> None:
    openai, httpx2 = pytest.importorskip("openai"), pytest.importorskip("httpx2")

    transport = httpx2.ASGITransport(harness.app)
    async with openai.AsyncOpenAI(
        base_url="http://quire/v1",
        api_key="-",
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as client:
        create = partial(
            client.audio.transcriptions.create, model="tiny", file=("talk.wav", b"RIFF")
        )
        whole = await create(include=["logprobs"], language="en", temperature=0)
        assert (whole.text, whole.usage.seconds, len(whole.logprobs)) == (TEXT, 7, 6)
        options = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
        verbose = await create(**options)
        assert (verbose.language, verbose.duration) == ("french", 6.25)
        assert (verbose.words[4].word, verbose.segments) == ("you?", None)
        assert (await create(response_format="srt")).startswith("1\n00:00:00,000")
        found = [event async for event in await create(stream=True, **options)]
        kinds = [type(one).__name__ for one in found]
        assert kinds == [
            *["TranscriptionTextDeltaEvent", "TranscriptionTextSegmentEvent"] * 3,
            "TranscriptionTextDoneEvent",
        ]
        assert "".join(one.delta for one in found[:-1:2]) == found[-1].text == TEXT
    assert len(speech.asked) == 4


@pytest.mark.parametrize("fields", [{}, {"stream": "true"}])
async def test_a_client_that_leaves_closes_the_transcription(
    harness: Harness, fields: dict[str, str]
) -> None:
    speech = harness.model.transcriber = FakeSpeech(step_s=5)
    request = httpx.Request("POST", f"http://quire{PATH}", **form(fields))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": PATH, "raw_path": PATH.encode(), "root_path": "",
        "query_string": b"", "client": None, "server": None,
        "headers": [
            (b"content-type", request.headers["content-type"].encode()), (b"host", b"quire"),
        ],
    }  # fmt: skip

    left = asyncio.Event()
    messages = [{"type": "http.request", "body": request.read()}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        del message

    call = asyncio.ensure_future(harness.app(scope, receive, send))
    while not speech.num_open:
        await asyncio.sleep(0.01)
    left.set()
    await asyncio.wait_for(call, 2)
    await asyncio.sleep(0)
    assert speech.num_open == 0
    assert harness.context.num_preparing == 0


def test_a_full_disk_is_an_error_503(make_harness: MakeHarness) -> None:
    harness = make_harness()
    harness.model.transcriber = FakeSpeech()
    sound = bytes(5 << 20)
    with small_disk(2 << 20):
        reply = harness.request("POST", PATH, **form({}, sound))
    assert (reply.status_code, "cannot be kept" in reply.text) == (503, True)
    assert harness.request("POST", PATH, **form({}, sound)).is_success
    assert harness.context.uploads._num_bytes == 0


def test_files_of_refused_forms_are_deleted(make_harness: MakeHarness) -> None:
    harness = make_harness()
    harness.model.transcriber = FakeSpeech()
    sound = bytes(3 << 20)
    wrong: list[dict[str, Any]] = [
        {"response_format": "ass"}, {"model": "other"}, {"language": "xx"}, {"file": "text"},
    ]  # fmt: skip
    for fields in wrong:
        reply = harness.request("POST", PATH, **form(fields, sound))
        assert reply.status_code in (400, 404)
        assert harness.context.uploads._num_bytes == 0
    request = httpx.Request("POST", "http://quire", **form({}, sound))
    cut = {"content": request.read()[:-9], "headers": dict(request.headers)}
    assert "does not end its last part" in harness.request("POST", PATH, **cut).text
    assert harness.context.uploads._num_bytes == 0
    directory = harness.context.uploads._directory
    assert directory is not None
    assert list(Path(directory).iterdir()) == []

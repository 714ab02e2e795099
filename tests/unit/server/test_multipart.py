"""Forms: their parts, and what is refused."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import httpx
import pytest

from quire.errors import RequestError
from quire.server.bodies.forms import Part, parts_of

from .conftest import Harness, MakeHarness

PATH = "/v1/audio/transcriptions"
TYPE = {"content-type": "multipart/form-data; boundary=b"}
FILE = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF\r\n--b"
)


def test_parts_are_those_that_a_client_sends() -> None:
    chooser = random.Random(5)
    alphabet = [
        b"\r",
        b"\n",
        b"-",
        b"--",
        b"b",
        b"\r\n--",
        b"\r\n\r\n",
        b"\x00",
        b"\xff",
        b"a" * 99,
    ]
    for size in (0, 1, 2, 5, 50):
        for _ in range(20):
            data = b"".join(chooser.choices(alphabet, k=size))
            request = httpx.Request(
                "POST",
                "http://a",
                data={"model": "m", "l[]": ["x", ""]},
                files={"file": ("n", data)},
            )
            boundary = request.headers["content-type"].partition("boundary=")[2].encode()
            found = parts_of(bytearray(request.read()), boundary)
            assert found == [
                Part("model", False, b"m"), Part("l[]", False, b"x"), Part("l[]", False, b""),
                Part("file", True, data),
            ]  # fmt: skip


def test_parts_may_be_written_in_other_ways() -> None:
    head = b"content-type: a\r\ncontent-disposition:form-data ;filename*=utf-8''a; NAME=file"
    for body in (
        b"--b\r\n" + head + b"\r\n\r\nRIFF\r\n--b--",
        b"--b \t\r\n" + head + b"\r\n\r\nRIFF\r\n--b--\r\nrest",
        b"before\r\n--b\r\n" + head + b"\r\n\r\nRIFF\r\n--b--\r\n",
    ):
        assert parts_of(bytearray(body), b"b") == [Part("file", True, b"RIFF")]
    long = bytes(5 << 20)
    body = b"--b\r\n" + head + b"\r\n\r\n" + long + b"\r\n--b--"
    assert parts_of(bytearray(body), b"b")[0].data == long
    assert parts_of(bytearray(b"--b\r\n" + head + b"\r\n\r\n--b--"), b"b")[0].data == b""
    assert parts_of(bytearray(b"--b--"), b"b") == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"-", b"--b", b"--b\r\n", b"--b\r\n\r\n", b"--a--", FILE, FILE[:-3], FILE + b"\r\n",
        b"--b\r\n\r\nRIFF\r\n--b--", b"--b\r\nX: y\r\n\r\nRIFF\r\n--b--",
        b"--b\r\nContent-Disposition: form-data; filename=a\r\n\r\nRIFF\r\n--b--",
        b'--b\r\nContent-Disposition: form-data; name=""\r\n\r\nRIFF\r\n--b--',
        b'--b\r\nContent-Disposition: attachment; name="file"\r\n\r\nRIFF\r\n--b--',
        FILE.replace(b"\r\n", b"a\r\n", 1) + b"--", FILE.replace(b"\r\n", b"\n") + b"--",
        b"--b\r\nX: " + b"y" * 5000 + FILE[3:] + b"--", (FILE + b"\r\n")[:-5] * 65 + b"\r\n--b--",
    ],
)  # fmt: skip
def test_malformed_bodies_are_errors_400(harness: Harness, body: bytes) -> None:
    with pytest.raises(RequestError, match=r"the form"):
        parts_of(bytearray(body), b"b")
    reply = harness.request("POST", PATH, content=body, headers=TYPE)
    assert reply.status_code == 400, reply.text


@pytest.mark.timeout(20)
def test_headers_of_a_part_take_no_time_that_grows_with_their_square() -> None:
    for text in (b'; a="\\', b'; a="', b";" + b" " * 99, b"; " + b"a" * 99, b'\\"', b"; name=a"):
        head = b"Content-Disposition: form-data" + text * (4000 // len(text))
        body = bytearray(b"".join([b"--b\r\n" + head[:4000] + b"\r\n\r\n\r\n"] * 64) + b"--b--")
        with suppress(RequestError):
            parts_of(body, b"b")


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        ({"json": {}}, 415, "multipart/form-data"),
        ({"data": {"model": "tiny"}}, 415, "multipart/form-data"),
        ({"content": b"x"}, 415, "multipart/form-data"),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": FILE + b"--", "headers": {**TYPE, "content-encoding": "gzip"}}, 415, "gzip"),
        ({"files": {"model": (None, "tiny")}}, 400, "missing required field `file`"),
        ({"files": {"file": (None, "RIFF")}}, 400, "file must be a file, not a text"),
        ({"files": {"model": b"tiny"}}, 400, "model must be a text, not a file"),
        ({"files": [("file", b"a"), ("file", b"a")]}, 400, "the form has file more than once"),
        ({"files": {"file": b"a", "model": (None, "other")}}, 404, "`other` does not exist"),
        ({"files": {"file": b"a", "model": (None, b"\xff")}}, 400, "not valid UTF-8"),
        ({"files": {"file": b"a", "prompt": (None, "a" * 70_000)}}, 400, "more than 65536 bytes"),
        ({"files": {"file": b"a", "temperature": (None, "hot")}}, 400,
         "temperature must be a number, got 'hot'"),
        ({"files": {"file": b"a", "seed": (None, "9" * 40)}}, 400,
         "seed must be a whole number from -9223372036854775808 to 9223372036854775807, got '999"),
        ({"files": {"file": b"a", "stream": (None, "maybe")}}, 400,
         "stream must be true or false, got 'maybe'"),
        ({"files": {"file": b"", "model": (None, "tiny")}}, 400, "file must be a file with"),
        ({"files": {"file": b"a", "response_format": (None, "ass")}}, 400,
         "response_format must be one of json, srt, text, verbose_json, vtt, got 'ass'"),
        ({"files": {"file": b"a", "response_format": (None, "srt")}}, 400, "gives no times"),
        ({"files": {"file": b"a", "timestamp_granularities[]": (None, "word")}}, 400,
         "timestamp_granularities needs response_format=verbose_json"),
        ({"files": {"file": b"a", "stream_include_usage": (None, "1")}}, 400, "Stream options"),
        ({"files": {"file": b"a", "stream": (None, "1"), "use_beam_search": (None, "1")}}, 400,
         "Streaming is not currently supported with beam search"),
        ({"files": {"file": b"a", "vllm_xargs": (None, "[" * 9999)}}, 400, "a JSON object"),
        ({"files": {"file": b"a", "max_completion_tokens": (None, "0")}}, 400, "at least 1, got 0"),
        ({"files": {"file": b"a", "model": (None, "")}}, 400, "was trained to write down audio"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    harness: Harness, options: dict[str, object], status: int, error: str
) -> None:
    reply = harness.request("POST", PATH, **options)
    assert reply.status_code == status, reply.text
    assert error in reply.json()["error"]["message"]


def test_a_text_model_says_what_is_needed(harness: Harness) -> None:
    reply = harness.request("POST", PATH, files={"file": ("x.wav", b"RIFF")})
    assert reply.json()["error"]["param"] == "model"
    assert "transcriptions need a model that was trained" in reply.text
    assert "Not Found" in harness.request("POST", "/v1/audio/speech").text
    document = harness.request("GET", "/openapi.json").json()
    body = document["paths"][PATH]["post"]["requestBody"]["content"]["multipart/form-data"]
    name = body["schema"]["$ref"].rpartition("/")[2]
    file = document["components"]["schemas"][name]["properties"]["file"]
    assert file == {"type": "string", "format": "binary", "contentMediaType": "audio/*"}


@pytest.mark.parametrize(
    ("headers", "options", "status"),
    [
        ({"origin": "http://evil.example"}, {}, 403),
        ({"origin": "null"}, {}, 403),
        ({"origin": "http://quire"}, {}, 400),
        ({"origin": "http://page.example"}, {"allowed_origins": ("http://page.example",)}, 400),
    ],
)
def test_forms_of_foreign_pages_are_refused(
    make_harness: MakeHarness, headers: dict[str, str], options: dict[str, Any], status: int
) -> None:
    """Also where any address may call: a browser does not ask before it sends a form."""
    harness = make_harness(host="0.0.0.0", **options)
    reply = harness.request("POST", PATH, files={"file": b"RIFF"}, headers=headers)
    assert reply.status_code == status, reply.text

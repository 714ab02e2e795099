"""`quire run-batch`: replies in order, and an error per bad line."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake_speech import FakeSpeech
from small_disk import small_disk

from quire.cli import main
from quire.cli.commands import run_batch as batch_files
from quire.cli.commands.run_batch import serve_metrics
from quire.cli.in_process import InProcessServer
from quire.errors import ConfigError


def run(
    tmp_path: Path, model: Path, lines: list[str], *options: str, code: int = 0
) -> list[dict[str, Any]]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    words = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(model)]
    assert main([*words, "--disable-tqdm", "--max-num-seqs", "4", *options]) == code
    assert not list(tmp_path.glob("*.part"))
    return [json.loads(line) for line in target.read_text().splitlines()]


def request(custom_id: str, **body: Any) -> str:
    url = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def test_a_batch(tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [request(f"p{n}", prompt=f"prompt number {n}", max_tokens=1 + n % 7) for n in range(20)]
    chat = request("chat", messages=[{"role": "user", "content": "hi"}])
    bad = [
        "{not json",
        json.dumps(["list"]),
        json.dumps({"url": "/v1/completions", "body": {}}),
        request("stream", prompt="x", stream=True),
        json.dumps({"custom_id": "url", "url": "/v1/images", "body": {}}),
        request("hot", prompt="x", temperature=9),
        request("model", prompt="x", model="another"),
    ]
    replies = run(tmp_path, model_dir, [*good[:10], *bad, *good[10:], "", chat], code=1)
    ids = [reply["custom_id"] for reply in replies]
    assert ids == [
        *[f"p{n}" for n in range(10)], None, None, None, "stream", "url", "hot", "model",
        *[f"p{n}" for n in range(10, 20)], "chat",
    ]  # fmt: skip
    for reply in replies[:10] + replies[17:]:
        assert reply["error"] is None
        assert reply["response"]["status_code"] == 200
    assert [r["response"]["body"]["usage"]["completion_tokens"] for r in replies[:7]] == [
        1, 2, 3, 4, 5, 6, 7,
    ]  # fmt: skip
    assert replies[-1]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    messages = [reply["error"]["message"] for reply in replies[10:17]]
    for message, part in zip(
        messages,
        [
            "line 11: the request must be a JSON object in one line, but at character 2: ",
            "line 12: the request must be a JSON object",
            "line 13: custom_id",
            "streamed",
            "/v1/images",
            "temperature",
            "another",
        ],
        strict=True,
    ):
        assert part in message
    assert [r["response"]["status_code"] for r in replies[15:17]] == [400, 404]
    told = capsys.readouterr()
    assert "21 of 28 requests answered" in told.out
    assert "7 failed; their replies contain the errors" in told.err
    assert "3 of these have no custom_id" in told.err


def test_errors_that_have_their_line_end_with_success(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [request("hot", prompt="x", temperature=9), request("good", prompt="x")]
    replies = run(tmp_path, model_dir, lines, "--fingerprint-mode", "none")
    assert [reply["error"] is None for reply in replies] == [False, True]
    assert replies[1]["response"]["body"].get("system_fingerprint") is None
    assert "1 failed" in capsys.readouterr().err


def test_what_is_no_request_is_told_by_its_line(tmp_path: Path, model_dir: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        b"\xef\xbb\xbf" + request("first", prompt="x").encode(), b"", b"\xff\xfe", b"[" * 100_000,
        request("last", prompt="x").encode() + b"\r",
    ]  # fmt: skip
    source.write_bytes(b"\n".join(lines))
    words = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(model_dir)]
    assert main([*words, "--disable-tqdm"]) == 1
    replies = [json.loads(line) for line in target.read_text().splitlines()]
    assert [reply["custom_id"] for reply in replies] == ["first", None, None, "last"]
    assert [reply["error"] and reply["error"]["message"] for reply in replies] == [
        None,
        "line 3: the request must be UTF-8, but has the byte 0xff at position 0",
        "line 4: the request is nested too deeply",
        None,
    ]


def test_the_input_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, link = tmp_path / "in.jsonl", tmp_path / "link.jsonl"
    source.write_text("{}")
    link.symlink_to(source)
    for target in (source, link, tmp_path / "." / ".." / tmp_path.name / "in.jsonl"):
        assert main(["run-batch", "-i", str(source), "-o", str(target)]) == 1
        assert "--output-file must be another file than --input-file" in capsys.readouterr().err
    assert source.read_text() == "{}"


class Store(BaseHTTPRequestHandler):
    """Gives and takes one file; refuses as often as is wanted."""

    content = b""
    refusals = 0

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/in" else 404)
        self.end_headers()
        self.wfile.write(self.content)

    def do_PUT(self) -> None:
        Store.content = self.rfile.read(int(self.headers["Content-Length"]))
        Store.refusals -= 1
        self.send_response(500 if Store.refusals >= 0 else 201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[str]:
    """The URL of a store of files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_files_may_be_urls(
    store: str, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "RETRY_S", 0.0)
    Store.content, Store.refusals = request("a", prompt="x").encode(), 2
    words = ["run-batch", "-i", f"{store}/in", "-o", f"{store}/out", "--model", str(model_dir)]
    assert main([*words, "--disable-tqdm", "--output-tmp-dir", str(tmp_path)]) == 0
    assert json.loads(Store.content)["custom_id"] == "a"
    assert list(tmp_path.iterdir()) == []


def test_urls_that_fail_are_told(
    store: str,
    model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(batch_files, "RETRY_S", 0.0)
    model = ["--model", str(model_dir), "--disable-tqdm", "--output-tmp-dir", str(tmp_path)]
    assert main(["run-batch", "-i", f"{store}/no", "-o", "x", *model]) == 1
    assert "cannot be fetched: HTTP Error 404" in capsys.readouterr().err
    Store.content, Store.refusals = request("a", prompt="x").encode(), 99
    assert main(["run-batch", "-i", f"{store}/in", "-o", f"{store}/out", *model]) == 1
    [kept] = tmp_path.glob("*/output.jsonl")
    assert f"cannot be sent: HTTP Error 500: Internal Server Error; they are in {kept}" in (
        capsys.readouterr().err
    )


async def test_metrics_meanwhile() -> None:
    server = await serve_metrics(lambda: b"vllm:x 1\n", "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    replies = []
    for method in (b"GET", b"POST"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(method + b" /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        replies.append(await reader.read())
        writer.close()
    with pytest.raises(ConfigError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
        await serve_metrics(lambda: b"", "127.0.0.1", port)
    server.close()
    found, refused = (replies[0], replies[1])
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert found.endswith(b"\r\n\r\nvllm:x 1\n")
    assert refused.startswith(b"HTTP/1.1 405")


def test_the_bundled_model_by_its_name(tmp_path: Path) -> None:
    [reply] = run(tmp_path, Path("demo"), [request("a", prompt="x", model="demo", max_tokens=1)])
    assert reply["error"] is None


def test_same_tokens_alone_and_in_company(tmp_path: Path, model_dir: Path) -> None:
    lines = [request(f"p{n}", prompt=f"prompt number {n}", max_tokens=12) for n in range(8)]
    together = run(tmp_path, model_dir, lines)
    for n in (0, 5):
        alone = run(tmp_path, model_dir, [lines[n]])[0]
        assert alone["response"]["body"]["choices"] == together[n]["response"]["body"]["choices"]


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run-batch"]) == 1
    assert "-i IN.jsonl -o OUT.jsonl" in capsys.readouterr().err
    assert main(["run-batch", "-i", str(tmp_path / "no"), "-o", "x"]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_a_disk_without_room_keeps_what_there_is(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(request(f"p{n}", prompt="x") for n in range(40)))
    words = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(model_dir)]
    with small_disk(10_000):
        assert main([*words, "--disable-tqdm"]) == 1
    said = f"{target} cannot be written: File too large; the incomplete file is {target}.part"
    assert said in capsys.readouterr().err
    assert not target.exists()
    assert json.loads((tmp_path / "out.jsonl.part").read_text().splitlines()[0])["error"] is None


def test_an_id_that_is_no_text(tmp_path: Path, model_dir: Path) -> None:
    lines = [request("\ud800", prompt="x"), request("é", prompt="x")]
    replies = run(tmp_path, model_dir, lines)
    assert [reply["custom_id"] for reply in replies] == ["\ud800", "é"]


def test_the_progress_bar_has_a_total(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["", *[request(f"p{n}", prompt="x") for n in range(6)], "{not json", "", "[]"]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    words = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(model_dir)]
    assert main([*words, "--max-num-seqs", "2"]) == 1
    first, *_, last = (
        capsys.readouterr().err.replace("\r", "\n").partition("Requests:")[2].split("\nReq")
    )
    assert "  0%" in first
    assert "0/8 [00:00<?" in first
    assert "100%" in last
    assert "8/8 [" in last


def test_audio_of_lines_is_at_a_url(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = FakeSpeech()
    monkeypatch.setattr("quire.server.apis.audio.routes.transcriber_of", lambda *_: speech)
    monkeypatch.setattr(InProcessServer, "_read", lambda _, url: url.encode())
    cases: list[tuple[str, dict[str, Any]]] = [
        (
            "transcriptions",
            {"response_format": "verbose_json", "timestamp_granularities": ["word"]},
        ),
        ("translations", {"response_format": "vtt", "language": "German"}),
        ("transcriptions", {"response_format": "ass"}),
    ]
    lines = [
        json.dumps(
            {"custom_id": "x", "url": f"/v1/audio/{path}", "body": {"file_url": "R", **body}}
        )
        for path, body in cases
    ]
    found = run(tmp_path, model_dir, lines)
    first, second, third = (one["response"]["body"] for one in found)
    assert (len(first["words"]), "segments" in first) == (5, False)
    assert second.startswith("WEBVTT")
    assert "must be one of" in third["error"]["message"]
    assert [options.task for _, options in speech.asked] == ["transcribe", "translate"]
    assert speech.sounds == [b"R", b"R"]

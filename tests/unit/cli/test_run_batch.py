"""`quire run-batch`: replies in order, and an error per bad line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_disk import small_disk

from quire.cli import main


def run(tmp_path: Path, model: Path, lines: list[str]) -> list[dict[str, Any]]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    words = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(model)]
    assert main([*words, "--disable-tqdm", "--max-num-seqs", "4"]) == 0
    assert not list(tmp_path.glob("*.part"))
    return [json.loads(line) for line in target.read_text().splitlines()]


def request(custom_id: str, **body: Any) -> str:
    url = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def test_a_batch(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [request(f"p{n}", prompt=f"prompt number {n}", max_tokens=1 + n % 7) for n in range(20)]
    chat = request("chat", messages=[{"role": "user", "content": "hi"}])
    bad = [
        "{not json",
        json.dumps(["list"]),
        json.dumps({"url": "/v1/completions", "body": {}}),
        request("stream", prompt="x", stream=True),
        json.dumps({"custom_id": "url", "url": "/v1/embeddings", "body": {}}),
        request("hot", prompt="x", temperature=9),
        request("model", prompt="x", model="another"),
    ]
    replies = run(tmp_path, tiny_model, [*good[:10], *bad, *good[10:], "", chat])
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
        ["", "JSON object", "custom_id", "streamed", "/v1/embeddings", "temperature", "another"],
        strict=True,
    ):
        assert part in message
    assert [r["response"]["status_code"] for r in replies[15:17]] == [400, 404]
    assert "21 of 28 requests answered" in capsys.readouterr().out


def test_same_tokens_alone_and_in_company(tmp_path: Path, tiny_model: Path) -> None:
    lines = [request(f"p{n}", prompt=f"prompt number {n}", max_tokens=12) for n in range(8)]
    together = run(tmp_path, tiny_model, lines)
    for n in (0, 5):
        alone = run(tmp_path, tiny_model, [lines[n]])[0]
        assert alone["response"]["body"]["choices"] == together[n]["response"]["body"]["choices"]


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run-batch"]) == 1
    assert "-i IN.jsonl -o OUT.jsonl" in capsys.readouterr().err
    assert main(["run-batch", "-i", str(tmp_path / "no"), "-o", "x"]) == 1
    assert "no such file" in capsys.readouterr().err


def test_a_disk_without_room_keeps_what_there_is(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(request(f"p{n}", prompt="x") for n in range(40)))
    words = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(tiny_model)]
    with small_disk(10_000):
        assert main([*words, "--disable-tqdm"]) == 1
    said = f"{target} cannot be written: File too large; the incomplete file is {target}.part"
    assert said in capsys.readouterr().err
    assert not target.exists()
    assert json.loads((tmp_path / "out.jsonl.part").read_text().splitlines()[0])["error"] is None


def test_an_id_that_is_no_text(tmp_path: Path, tiny_model: Path) -> None:
    lines = [request("\ud800", prompt="x"), request("é", prompt="x")]
    replies = run(tmp_path, tiny_model, lines)
    assert [reply["custom_id"] for reply in replies] == ["\ud800", "é"]

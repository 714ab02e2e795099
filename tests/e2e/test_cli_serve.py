"""`quire serve` as users start it, and every other command and the page talking to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from .page.conftest import FLAGS, chromium

SERVING = re.compile(r"Serving tiny at (\S+), ready")
ENVIRONMENT = {**os.environ, "QUIRE_BACKEND": "reference", "QUIRE_LOG_LEVEL": "INFO"}


def quire(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire", *words],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=check,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_checkpoint import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = tmp_path_factory.mktemp("config") / "server.yaml"
    config.write_text("served-model-name: tiny\nport: 0\nmax-num-seqs: 16\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", "serve", str(model), "--config", str(config)],
        env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    url = next((m[1] for line in process.stderr if (m := SERVING.search(line))), None)
    assert url is not None, "the server ended before it served"
    yield url
    process.send_signal(signal.SIGTERM)
    with process.stderr:
        log = process.stderr.read()
    assert process.wait(timeout=30) == 0, log
    assert "Shut down." in log


def test_chat_and_complete(server: str) -> None:
    words = ["--url", f"{server}/v1", "--max-tokens", "6", "--temperature", "0", "--stats"]
    for command in ("chat", "complete"):
        done = quire(command, "-q", "hello", *words)
        assert "6 out]" in done.stdout.splitlines()[-1]
        assert done.stderr == ""


def test_a_load_is_measured_and_agrees_with_the_servers_own_counters(
    server: str, model: Path, tmp_path: Path
) -> None:
    def generated() -> float:
        text = urllib.request.urlopen(f"{server}/metrics").read().decode()
        found = re.search(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    before = generated()
    done = quire(
        "bench", "serve", "--base-url", server, "--tokenizer", str(model), "--num-prompts", "10",
        "--input-len", "12", "--output-len", "7", "--max-concurrency", "3", "--disable-tqdm",
        "--ready-check-timeout-sec", "0", "--save-result", "--result-dir", str(tmp_path),
    )  # fmt: skip
    assert "Failed requests:                         0" in done.stdout
    saved = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert saved["model_id"] == "tiny"
    assert saved["total_output_tokens"] == 70
    assert generated() - before == 70


def test_what_cannot_be_served_is_one_clear_line() -> None:
    done = quire("serve", "/no/such/model", check=False)
    assert done.returncode == 1
    assert "there is no directory '/no/such/model'" in done.stderr.splitlines()[-1]
    done = quire("serve", "--prot", "80", check=False)
    assert done.returncode == 2
    assert "did you mean --port?" in done.stderr
    done = quire("serve", "--host", "0.0.0.0", check=False)
    assert done.returncode == 1
    assert "api" in done.stderr.splitlines()[-1].lower()


def test_the_page_talks_to_the_real_server(server: str) -> None:
    with chromium(FLAGS) as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        complaints: list[str] = []
        page.on("console", lambda line: complaints.append(line.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server)
        page.wait_for_selector('#state[data-state="ready"]')
        page.click("#open-settings")
        page.fill("[name=max_tokens]", "24")
        page.fill("[name=temperature]", "0")
        page.click("text=Done")
        prompts = ("a prompt that is long enough to fill a block or two", "and on")
        for index, text in enumerate(prompts):
            page.fill("#prompt", text)
            page.press("#prompt", "Enter")
            page.wait_for_selector(f".message.assistant >> nth={index}")
            page.wait_for_selector("#send:not([hidden])")
        stats = page.locator(".message.assistant .stats").last
        assert "24 tokens" in stats.inner_text()
        cached = re.search(r"(\d+) of \d+ read from cache", stats.inner_text())
        assert cached is not None
        assert int(cached[1]) >= 48  # the conversation so far is not computed again
        page.wait_for_selector("#finished >> text=/^[1-9]/")
        page.wait_for_selector("#kv-cached >> text=/^[1-9]/")
        assert complaints == []

"""The bundled demo model through the command line: what a newcomer types first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def quire(*words: str, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "quire", *words],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_question_is_answered() -> None:
    assert "42" in quire("run", "What is 17 + 25?", "--temperature", "0")


def test_a_question_through_a_pipe_is_answered() -> None:
    assert "Paris" in quire("run", "--temperature", "0", text="What is the capital of France?")


def test_a_batch_is_answered(tmp_path: Path) -> None:
    asked = {
        "sum": ("What is 17 + 25?", "42"),
        "capital": ("What is the capital of France?", "Paris"),
    }
    lines = [
        json.dumps({
            "custom_id": name, "method": "POST", "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": question}],
                     "temperature": 0, "max_tokens": 30},
        })
        for name, (question, _) in asked.items()
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    quire("run-batch", "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        reply = json.loads(line)
        answer = reply["response"]["body"]["choices"][0]["message"]["content"]
        assert asked[reply["custom_id"]][1] in answer


def test_doctor_finds_this_installation_healthy() -> None:
    assert quire("doctor").endswith("\nhealthy\n")

"""Runs the examples of vLLM's documentation that fit a model of text, unchanged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.vllm_tests.running import (
    HUB_ID,
    check_state,
    environment,
    furnish,
    give_room,
    link_models,
)

MODEL = "Qwen/Qwen3-0.6B"
OFFLINE: tuple[tuple[str, ...], ...] = (
    ("basic/offline_inference/basic.py",),
    ("basic/offline_inference/chat.py", "--model", MODEL),
    ("basic/offline_inference/generate.py", "--model", MODEL),
    ("deployment/async_llm_streaming.py",),
    ("deployment/llm_engine_example.py", "--model", MODEL),
    ("features/automatic_prefix_caching/automatic_prefix_caching_offline.py", "--model", MODEL),
    ("features/automatic_prefix_caching/prefix_caching_offline.py",),
    ("features/logits_processor/custom.py",),
    ("features/logits_processor/custom_req.py",),
    ("features/logits_processor/custom_req_init.py",),
    ("features/logits_processor/dry.py",),
    ("features/profiling/simple_profiling_offline.py",),
    ("features/reset_kv/reset_kv_offline.py",),
    ("features/structured_outputs/structured_outputs_offline.py",),
    ("observability/metrics/offline.py",),
    ("tool_calling/chat_with_tools_offline.py",),
    ("generate/trace_replay_offline.py", "--model", MODEL),
)
ONLINE: tuple[tuple[str, ...], ...] = (
    ("basic/online_serving/openai_completion_client.py",),
    ("basic/online_serving/openai_completion_client.py", "--stream"),
    ("basic/online_serving/openai_chat_completion_client.py",),
    ("basic/online_serving/openai_chat_completion_client.py", "--stream"),
    ("generate/batched_chat_completions_online.py",),
    ("reasoning/openai_chat_completion_with_reasoning.py",),
    ("reasoning/openai_chat_completion_with_reasoning_streaming.py",),
    ("reasoning/openai_chat_completion_tool_calls_with_reasoning.py",),
    ("reasoning/openai_responses_client.py",),
    ("tool_calling/openai_chat_completion_client_with_tools.py",),
    ("tool_calling/openai_chat_completion_client_with_tools_required.py",),
    ("tool_calling/openai_responses_client_with_tools.py",),
    ("features/structured_outputs/structured_outputs_client.py",),
    ("scale_out/token_generation_client.py",),
)
"""Clients of a server at port 8000."""
_SERVE = (
    "--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    "--enable-scale-out",
)  # fmt: skip
_CONTEXT = 1 << 14
"""Tokens that the model is given room for."""
_LIMIT_S = 150
_START_S = 90
_MAX_CHARS = 300


def run_examples(source: Path, results: Path) -> None:
    """Runs all of them but those that worked before; what came of each is a line of
    RESULTS/examples.jsonl."""
    results.mkdir(parents=True, exist_ok=True)
    check_state(results)
    with tempfile.TemporaryDirectory(prefix="vllm-examples-") as place:
        work = Path(place)
        furnish(work, source)
        link_models(work, f'"{MODEL}"')
        give_room(work, f"max_model_len={_CONTEXT}")
        texts = [(source / "examples" / words[0]).read_text() for words in ONLINE]
        names = sorted({name for text in texts for name in HUB_ID.findall(text)} | {MODEL})
        path = results / "examples.jsonl"
        before = read_outcomes(path)
        with path.open("w") as file:

            def note(words: tuple[str, ...]) -> None:
                name = " ".join(words)
                worked = before.get(name) == ""
                outcome = "" if worked else _run(work, source, words)
                print(name, outcome or "works", flush=True)
                file.write(json.dumps([name, outcome]) + "\n")
                file.flush()

            for words in OFFLINE:
                note(words)
            with _server(work, names):
                for words in ONLINE:
                    note(words)


def read_outcomes(path: Path) -> dict[str, str]:
    """Outcome of each example, empty for those that work."""
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(json.loads(line) for line in lines)


def _run(work: Path, source: Path, words: tuple[str, ...]) -> str:
    """Runs one; the last line of its error, empty if there is none."""
    path = source / "examples" / words[0]
    link_models(work, path.read_text())
    command = [sys.executable, "-m", "quire.vllm", str(path), *words[1:]]
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env=environment(work),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {_LIMIT_S} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [
        f"code {done.returncode}"
    ]
    return lines[-1][:_MAX_CHARS] if done.returncode else ""


@contextmanager
def _server(work: Path, names: list[str]) -> Iterator[None]:
    with (work / "server.log").open("w") as log:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "quire.vllm",
                "serve",
                MODEL,
                *_SERVE,
                "--served-model-name",
                *names,
            ],
            cwd=work,
            env=environment(work),
            stdout=log,
            stderr=log,
        )
        end = time.monotonic() + _START_S
        while time.monotonic() < end and child.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen("http://localhost:8000/ready", timeout=5).close()
                break
            time.sleep(0.5)
        try:
            yield
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)

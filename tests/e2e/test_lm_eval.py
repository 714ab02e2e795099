"""lm-eval gives a server of the bundled model the score, answers and likelihoods that it gives
transformers with the same checkpoint.

Needs lm-eval with its `api` and `hf` extras, in any environment:

    LM_EVAL=path/to/lm_eval python -m pytest -m long tests/e2e/test_lm_eval.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import RunningServer

MODEL = Path(__file__).parents[2] / "src/quire/demo_model"
TASKS = Path(__file__).parent / "lm_eval_tasks"
TEXTS = ("quire_equations", "quire_capitals", "quire_perplexity")
CHATS = ("quire_sums",)
NUM_ITEMS = 16
"""Of each task: all of it must be done within the limit of a test."""
LM_EVAL = os.environ.get("LM_EVAL") or shutil.which("lm_eval")

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not LM_EVAL, reason="lm_eval is not installed; LM_EVAL may say where it is"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    options = {"model": str(MODEL), "served_model_name": ["demo"], "dtype": "float32"}
    running = RunningServer(options, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def evaluate(
    directory: Path, kind: str, tasks: tuple[str, ...], *flags: str, **arguments: Any
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """What lm-eval says: the scores, and for each task what the model answered to each item."""
    given = ",".join(f"{name}={value}" for name, value in arguments.items())
    command = [
        str(LM_EVAL), "run", "--model", kind, "--model_args", given, "--include_path", ".",
        "--tasks", *tasks, "--output_path", str(directory), "--log_samples",
        "--limit", str(NUM_ITEMS), *flags,
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(directory)}
    env = {**os.environ, **offline, "OPENAI_API_KEY": "none", "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, cwd=TASKS, env=env, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [results] = directory.rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]
    answers = {}
    for task in tasks:
        [samples] = directory.rglob(f"samples_{task}_*.jsonl")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        answers[task] = [row["resps"] for row in sorted(rows, key=lambda row: row["doc_id"])]
    return scores, answers


def check_same(ours: Any, theirs: Any) -> None:
    """Texts and counts are equal, likelihoods and scores nearly so."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours:
            check_same(ours[name], theirs[name])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            check_same(one, other)
    elif isinstance(ours, str):
        try:
            assert float(ours) == pytest.approx(float(theirs), abs=1e-2, rel=1e-4)
        except ValueError:
            assert ours == theirs
    else:
        assert ours == pytest.approx(theirs, abs=1e-2, rel=1e-4)


def test_completions(server: RunningServer, tmp_path: Path) -> None:
    theirs = evaluate(
        tmp_path / "hf", "hf", TEXTS, "--batch_size", "8", pretrained=MODEL, dtype="float32"
    )
    common = {
        "model": "demo", "base_url": f"{server.url}/v1/completions", "tokenizer": MODEL,
        "num_concurrent": 8, "max_retries": 1,
    }  # fmt: skip
    ours = evaluate(tmp_path / "ids", "local-completions", TEXTS, **common)
    print(json.dumps([theirs[0], ours[0]], indent=1))
    check_same(list(ours), list(theirs))
    assert theirs[0]["quire_equations"]["exact_match,number"] > 0.3
    assert theirs[0]["quire_capitals"]["acc,none"] > 0.9
    by_text = evaluate(
        tmp_path / "text", "local-completions", TEXTS[:1], **common, tokenized_requests=False
    )
    check_same(by_text[1]["quire_equations"], theirs[1]["quire_equations"])


def test_chats(server: RunningServer, tmp_path: Path) -> None:
    chat = ("--apply_chat_template",)
    theirs = evaluate(tmp_path / "hf", "hf", CHATS, *chat, pretrained=MODEL, dtype="float32")
    ours = evaluate(
        tmp_path / "api", "local-chat-completions", CHATS, *chat, model="demo",
        base_url=f"{server.url}/v1/chat/completions", num_concurrent=8, max_retries=1,
    )  # fmt: skip
    print(json.dumps([theirs[0], ours[0]], indent=1))
    check_same(list(ours), list(theirs))
    assert theirs[0]["quire_sums"]["exact_match,number"] > 0.3

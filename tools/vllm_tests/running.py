"""Runs test files, each in a process of its own, in a directory that has what they look for."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tools.vllm_tests.sorting import test_files

import quire
from quire.config.model_files import DEMO_MODEL_PATH

_STAND_INS = Path(__file__).parent / "stand_ins"
HUB_ID = re.compile(r"[\"']([A-Za-z0-9][\w.-]+/[A-Za-z0-9][\w.-]+)[\"']")
_NO_MODEL = re.compile(
    r"^(application|text|image|audio|video|tests?|v\d|examples)/|\.(py|json|txt)$"
)
_CONTEXT = 1 << 15
"""Tokens that the model is given room for: tests ask for contexts of their models' sizes."""
_LIMIT_S = 300
"""Most seconds for a process. What takes longer counts with the tests that ended in time."""
_TOGETHER = 12
"""Files without an engine that share a process: imports take longer than their tests."""
_ENGINE = re.compile(
    r"RemoteOpenAIServer|RemoteLaunchRenderServer|vllm_runner|VllmRunner|\bLLM\(|LLMEngine|AsyncLLM|"
    r"monkeypatch\.setenv|subprocess|pytester"
)
"""What files say that start engines, or change the process that they run in."""


def run(source: Path, results: Path, names: list[str]) -> None:
    """Runs the files named, or all that could pass and have no result yet."""
    results.mkdir(parents=True, exist_ok=True)
    chosen = names or [name for name, reason in test_files(source).items() if not reason]
    with tempfile.TemporaryDirectory(prefix="vllm-tests-") as place:
        work = Path(place)
        furnish(work, source)
        wanted = [name for name in chosen if names or not result_file(results, name).exists()]
        together = [name for name in wanted if not _needs_engine(source, name)]
        for begin in range(0, len(together), _TOGETHER):
            _run_files(work, source, results, together[begin : begin + _TOGETHER])
        for name in wanted:
            if name not in together:
                _run_files(work, source, results, [name])


def result_file(results: Path, name: str) -> Path:
    """Where the result of a test file is kept."""
    return results / (name.replace("/", "-") + ".jsonl")


def furnish(work: Path, source: Path) -> None:
    """Fills a directory with vLLM's tests, but for the files that stand-ins replace."""
    shutil.copytree(source / "tests", work / "tests")
    for path in _STAND_INS.glob("*.py"):
        shutil.copy(path, work / "tests" / path.name)
    (work / "examples").symlink_to(source / "examples")
    shutil.copytree(DEMO_MODEL_PATH, work / "model")
    config = json.loads((work / "model" / "config.json").read_text())
    config["max_position_embeddings"] = _CONTEXT
    (work / "model" / "config.json").write_text(json.dumps(config))


def link_models(work: Path, text: str) -> None:
    """Makes every hub id in a program's text a directory of that name, with the model."""
    for name in set(HUB_ID.findall(text)):
        place = work / name
        if not _NO_MODEL.search(name) and not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(work / "model")


def environment(work: Path) -> dict[str, str]:
    """The environment variables of a program that runs there."""
    paths = [str(work), str(Path(quire.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }


def _needs_engine(source: Path, name: str) -> bool:
    """Whether a file starts engines or servers: then it gets a process of its own."""
    return _ENGINE.search((source / "tests" / name).read_text()) is not None


def _run_files(work: Path, source: Path, results: Path, names: list[str]) -> None:
    """Runs files in one process, and keeps what came of each."""
    print(*names, sep="\n", flush=True)
    paths = [source / "tests" / name for name in names]
    for each in {place for path in paths for place in (path, *_conftests(path))}:
        link_models(work, each.read_text())
    report = work / "report.jsonl"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "quire.vllm", "-m", "pytest",
               *(f"tests/{name}" for name in names), "-q",
               "-p", "no:cacheprovider", "--tb=short", "--asyncio-mode=auto",
               "--continue-on-collection-errors", "-p", "tests.partial_report"]  # fmt: skip
    log = result_file(results, names[0]).with_suffix(".log")
    with log.open("w") as output:
        child = subprocess.Popen(
            command,
            cwd=work,
            env={**environment(work), "REPORT": str(report)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            try:
                child.wait(_LIMIT_S)
            finally:
                with suppress(ProcessLookupError):  # also the servers that it leaves
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    lines = report.read_text().splitlines() if report.exists() else []
    for name in names:
        own = [line for line in lines if _file_of(json.loads(line)[0]) == f"tests/{name}"]
        if own:
            result_file(results, name).write_text("".join(f"{line}\n" for line in own))


def _conftests(path: Path) -> list[Path]:
    found = (folder / "conftest.py" for folder in path.parents)
    return [each for each in found if each.is_file()]


def _file_of(test: str) -> str:
    return test.partition("::")[0]

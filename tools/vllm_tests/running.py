"""Runs test files, each in a process of its own, in a directory that has what they look for."""

from __future__ import annotations

import hashlib
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

from tools.vllm_parsers.record import write_tokenizer
from tools.vllm_tests.adapter import write_adapter
from tools.vllm_tests.sorting import test_files

import quire
from quire.config.checkpoint.model_files import DEMO_MODEL_PATH

_STAND_INS = Path(__file__).parent / "stand_ins"
HUB_ID = re.compile(r"[\"']([A-Za-z0-9][\w.-]+/[A-Za-z0-9][\w.-]+)[\"']")
_NO_MODEL = re.compile(
    r"^(application|text|image|audio|video|tests?|v\d|examples)/|\.(py|json|txt)$"
)
_CONTEXT = 1 << 11
"""Tokens that the model is given room for, unless a test asks for more. Not many more: it never
ends a text that is longer than those of its training, and many tests do not bound a reply."""
_ASKED = re.compile(r"max.model.len\D{1,40}?(\d{4,5})\b")
_LIMIT_S = 240
"""Most seconds for a process. What takes longer counts with the tests that ended in time."""
_MORE_S = 120
"""The same for each further file of a process."""
_TEST_LIMIT_S = 60
"""Most seconds for a test with its set-up, which may start a server."""
_TOGETHER = 12
"""Files that share a process, with one size of context: imports take long."""
_OF_PARSERS = ("parser/", "reasoning/", "tool_parsers/")
"""Files whose tokenizers have the marks of all families; no model fits them."""
_ENGINE = re.compile(
    r"RemoteOpenAIServer|RemoteLaunchRenderServer|vllm_runner|VllmRunner|\bLLM\(|LLMEngine|AsyncLLM|"
    r"setenv|subprocess|pytester"
)
_OWN_PROCESS = re.compile(r"pytester|ServerCustom|envs_cache|collective_rpc")
"""Contents of files that start engines, and of files that change the process in which they run."""


def run(source: Path, results: Path, names: list[str], model: Path = DEMO_MODEL_PATH) -> None:
    """Runs the files named, or all that could pass and have no result yet, with the model of a
    directory. Exits if RESULTS has results of another state of the code."""
    results.mkdir(parents=True, exist_ok=True)
    check_state(results)
    chosen = names or [name for name, reason in test_files(source).items() if not reason]
    with tempfile.TemporaryDirectory(prefix="vllm-tests-") as place:
        work = Path(place)
        furnish(work, source, model)
        wanted = [name for name in chosen if names or not result_file(results, name).exists()]
        together = [name for name in wanted if not _needs_engine(source, name)]
        parsers = [name for name in together if name.startswith(_OF_PARSERS)]
        others = [name for name in together if name not in parsers]
        for names, kind in ((parsers, "marks"), (others, "model")):
            for begin in range(0, len(names), _TOGETHER):
                _run_files(work, source, results, names[begin : begin + _TOGETHER], kind)
        apart = [name for name in wanted if name not in together]
        alone = [name for name in apart if _changes_its_process(source, name)]
        for room in sorted({_room_of(source, name) for name in apart}):
            names = [name for name in apart if _room_of(source, name) == room and name not in alone]
            for begin in range(0, len(names), _TOGETHER):
                _run_files(work, source, results, names[begin : begin + _TOGETHER], "model")
        for name in alone:
            _run_files(work, source, results, [name], "model")


def check_state(results: Path) -> None:
    """Results of one folder are of one state of the code, so that they can be counted together."""
    package = Path(quire.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".so", ".json", ".jinja", ".safetensors") and path.is_file():
            digest.update(path.relative_to(package).as_posix().encode())
            digest.update(path.read_bytes())
    state = results / "state"
    if state.exists() and state.read_text() != digest.hexdigest():
        sys.exit(f"{results} has results of another state of the code; name a new folder")
    if not state.exists():
        state.write_text(digest.hexdigest())


def result_file(results: Path, name: str) -> Path:
    """Path of the results of a test file."""
    return results / (name.replace("/", "-") + ".jsonl")


def furnish(work: Path, source: Path, model: Path = DEMO_MODEL_PATH) -> None:
    """Fills a directory with vLLM's tests, but for the files that stand-ins replace, and with a
    copy of a model's directory and an adapter of it."""
    shutil.copytree(source / "tests", work / "tests")
    for path in _STAND_INS.rglob("*.py"):
        shutil.copy(path, work / "tests" / path.relative_to(_STAND_INS))
    (work / "examples").symlink_to(source / "examples")
    shutil.copytree(model, work / "model")
    shutil.copytree(DEMO_MODEL_PATH, work / "marks")
    write_tokenizer(work / "marks" / "tokenizer.json")
    write_adapter(work / "adapter", work / "model")
    for path in (work / "adapter").glob("*"):  # a hub id may be that of a model or of an adapter
        shutil.copy(path, work / "model" / path.name)


def link_models(work: Path, text: str, model: str = "model") -> None:
    """Makes every hub id in a program's text a directory of that name. `model`: what is in it:
    `marks` has the bundled model's tokenizer, in which the marks of all families are tokens."""
    for name in set(HUB_ID.findall(text)):
        place = work / name
        if not _NO_MODEL.search(name) and (place.is_symlink() or not place.exists()):
            place.parent.mkdir(exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(work / model)


def give_room(work: Path, text: str) -> None:
    """Gives the model room for as many tokens as a program asks for; one of a GGUF file has its
    own."""
    path = work / "model" / "config.json"
    if not path.exists():
        return
    config = json.loads(path.read_text())
    inner = config.get("text_config", config)  # of a model with images
    inner["max_position_embeddings"] = _asked_room(text)
    path.write_text(json.dumps(config))


def _asked_room(text: str) -> int:
    return max(_CONTEXT, *map(int, _ASKED.findall(text)), 0)


def _room_of(source: Path, name: str) -> int:
    texts = (one.read_text() for one in _read_by(source / "tests" / name))
    return _asked_room("\n".join(texts))


def environment(work: Path) -> dict[str, str]:
    """The environment variables of a program that runs there. The K/V store is off, as vLLM's is by
    default: K/V of an earlier server would change how many tokens are cached."""
    paths = [str(work), str(Path(quire.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "QUIRE_KV_STORE": "off",
    }


def _needs_engine(source: Path, name: str) -> bool:
    """Whether a file, or the fixtures next to it, start engines or servers: then it gets a process
    of its own."""
    path = source / "tests" / name
    places = [path, *(one for one in [path.with_name("conftest.py")] if one.is_file())]
    return any(_ENGINE.search(one.read_text()) for one in places)


def _changes_its_process(source: Path, name: str) -> bool:
    """Whether a file changes the process that it runs in, so that no other can share it."""
    return _OWN_PROCESS.search((source / "tests" / name).read_text()) is not None


def _run_files(work: Path, source: Path, results: Path, names: list[str], model: str) -> None:
    """Runs files in one process, and keeps what came of each."""
    print(*names, sep="\n", flush=True)
    paths = [source / "tests" / name for name in names]
    texts = [place.read_text() for place in {one for path in paths for one in _read_by(path)}]
    for text in texts:
        link_models(work, text, model)
    give_room(work, "\n".join(texts))
    report = work / "report.jsonl"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "quire.vllm", "-m", "pytest",
               *(f"tests/{name}" for name in names), "-q",
               "-p", "no:cacheprovider", "--tb=short", "--asyncio-mode=auto",
               f"--timeout={_TEST_LIMIT_S}", "--continue-on-collection-errors",
               "-p", "tests.placeholders", "-p", "tests.partial_report"]  # fmt: skip
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
                child.wait(_LIMIT_S + _MORE_S * (len(names) - 1))
            finally:
                with suppress(ProcessLookupError):  # also the servers that it leaves
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    text = report.read_text() if report.exists() else ""
    lines = text.rpartition("\n")[0].splitlines()
    last = {json.loads(line)[0]: line for line in lines}
    for name in names:
        own = [line for test, line in last.items() if _file_of(test) == f"tests/{name}"]
        if not own and names == [name]:
            own = [json.dumps([f"tests/{name}", "failed", _last_error(log.read_text())])]
        if own:
            result_file(results, name).write_text("".join(f"{line}\n" for line in own))


def _last_error(log: str) -> str:
    """Outcome of a process that ended before it ran a test."""
    errors = [line for line in log.splitlines() if line.startswith("E ")]
    return errors[-1] if errors else "did not end in time"


def _read_by(path: Path) -> list[Path]:
    """A test file, and other files in its folder and the parent folders that name models."""
    above = (folder / "conftest.py" for folder in path.parents)
    return [each for each in (path, path.with_name("utils.py"), *above) if each.is_file()]


def _file_of(test: str) -> str:
    return test.partition("::")[0]

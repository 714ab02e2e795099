"""Runs vLLM's tests of parsers in its own interpreter, with the plug-in that writes cases."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import tokenizers

import quire
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format

_MARK = re.compile(r"<[^<>\s={}]{1,60}>|\[/?[A-Z_]{2,30}\]")
_FOLDERS = ("tool_parsers", "reasoning", "parser")


def record(python: str, source: Path, cases: Path) -> str:
    """Writes the cases; returns the last lines of pytest. Tests that need a hub fail."""
    cases.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "tests").mkdir()
        (place / "tests" / "__init__.py").touch()
        for folder in _FOLDERS:
            shutil.copytree(source / "tests" / folder, place / "tests" / folder)
        shutil.copy(Path(__file__).with_name("recorder.py"), place)
        write_tokenizer(place / "tokenizer.json")
        environment = {
            **os.environ, "PYTHONPATH": f"{place}:{os.environ.get('RECORDER_PYTHONPATH', '')}",
            "RECORDED_CASES": str(cases.resolve()), "HF_HUB_OFFLINE": "1",
            "STAND_IN_TOKENIZER": str(place / "tokenizer.json"),
        }  # fmt: skip
        done = subprocess.run(
            [python, "-m", "pytest", "-p", "recorder", "-q", "--no-header", "--tb=line",
             "--continue-on-collection-errors", "-p", "no:cacheprovider",
             *(f"tests/{folder}" for folder in _FOLDERS)],
            cwd=place, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    return "\n".join(done.stdout.splitlines()[-400:]) + done.stderr[-2000:]


def write_tokenizer(path: Path) -> None:
    """Writes the bundled model's, in which the marks of all families are tokens of their own."""
    model = Path(quire.__file__).parent / "demo_model"
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    texts: list[str] = []
    for format in TOOL_FORMATS.values():
        texts.extend(reply_format(None, format()).literal_texts(has_tools=True))
    for tags in REASONING_FORMATS.values():
        texts.extend(reply_format(tags, None).literal_texts(has_tools=False))
    tokenizer.add_tokens(sorted({mark for text in texts for mark in _MARK.findall(text)}))
    tokenizer.save(str(path))

"""What users import: it exists, it is cheap to import, and it pulls in nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import quire

SRC = Path(quire.__file__).parent


@pytest.mark.parametrize("name", quire.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(quire, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchThing'"):
        _ = quire.NoSuchThing


def heavy_modules(statements: str, *heavy: str) -> str:
    """Which of these modules a Python imports that runs the statements."""
    code = (
        f"import sys, quire; {statements or None}; print(sorted({set(heavy)} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_pulls_in_nothing_heavy() -> None:
    found = heavy_modules("", "numpy", "torch", "transformers", "tokenizers", "jinja2")
    assert found == "[]"


def test_engine_imports_neither_torch_nor_transformers() -> None:
    statements = "quire.LLM; quire.SamplingParams; import quire.core.engine_core"
    heavy = ("torch", "transformers", "huggingface_hub", "llguidance")
    assert heavy_modules(statements, *heavy) == "[]"


def test_a_server_starts_without_what_is_rarely_used() -> None:
    rooms = (
        "bench", "chat.sandbox", "cli.commands.run_batch", "cli.repl", "core.process_host",
        "core.trace", "backends.reference", "frontend.beam_search", "frontend.hf_tokenizer",
        "frontend.observers.user_loggers", "frontend.offline", "llm", "metrics.reader",
        "models.families", "parsers.harmony", "parsers.detection", "parsers.registry",
        "parsers.tool_formats.tagged_parameters", "structured.compile", "vllm",
        "worker.processors",
    )  # fmt: skip
    places = [SRC / room.replace(".", "/") for room in rooms]
    assert all(one.is_dir() or one.with_suffix(".py").is_file() for one in places)
    heavy = ("llguidance", "jinja2", "tokenizers", "torch", "transformers", "uvloop")
    statements = "import quire.cli.commands.serve, quire.server.serving"
    assert heavy_modules(statements, *heavy, *(f"quire.{room}" for room in rooms)) == "[]"


def test_an_offline_engine_imports_no_server() -> None:
    found = heavy_modules(
        "quire.LLM", "asyncio", "starlette", "uvicorn", "prometheus_client", "quire.server",
        "quire.parsers", "quire.frontend.online",
    )  # fmt: skip
    assert found == "[]"

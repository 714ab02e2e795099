"""What users import: it exists, it is cheap to import, and it pulls in nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import quire


@pytest.mark.parametrize("name", quire.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(quire, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchThing'"):
        _ = quire.NoSuchThing


def test_import_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, quire; heavy = {'numpy', 'torch', 'transformers', 'tokenizers', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_engine_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, quire; quire.LLM; quire.SamplingParams;"
        "import quire.core.engine_core;"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'llguidance'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

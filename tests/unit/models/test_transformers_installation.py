"""Models of transformers where other packages of the installation are unusable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quire.errors import UnsupportedModelError

CODE = """
from quire.models.transformers.choice import with_model_impl
import transformers.cache_utils  # a program may have imported it first
config = {"architectures": ["BioGptForCausalLM"], "model_type": "biogpt"}
print(with_model_impl(config, "transformers")["architectures"])
"""


@pytest.mark.long
def test_a_torchvision_that_cannot_be_imported_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from torchvision import parts\nraise RuntimeError('operator torchvision::nms is lost')\n"
    )
    (package / "parts.py").touch()
    path = f"{tmp_path}:{':'.join(filter(None, sys.path))}"
    found = subprocess.run(
        [sys.executable, "-c", CODE], env={"PYTHONPATH": path, "PATH": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert found.stdout == "['BioGptForCausalLM']\n", found.stderr
    assert "torchvision cannot be imported" in found.stderr
    assert "operator torchvision::nms is lost" in found.stderr


def test_the_first_cause_of_a_class_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    from quire.models.transformers import modules

    class Broken:
        def __getattr__(self, name: str) -> object:
            raise ModuleNotFoundError(name) from RuntimeError("the operator is missing")

    monkeypatch.setattr(modules, "transformers", Broken())
    with pytest.raises(
        UnsupportedModelError, match=r"cannot import BioGptForCausalLM .*: the operator is missing"
    ):
        modules.find({"architectures": ["BioGptForCausalLM"], "model_type": "biogpt"})

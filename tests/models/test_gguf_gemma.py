"""GGUF files of Gemma 3n and 4: the numbers that gguf-py says, bit for bit, and what transformers
computes with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_gemma_cases import GEMMA
from gguf_harness import as_numbers, check_binding, check_numbers, compare, gguf_model, model_file
from model_cases import Case

from quire.backends.base import Backend
from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.errors import ModelError
from quire.models import build_program
from quire.program.ops import Linear
from quire.program.values import GroupedFormat

gguf_gemma = pytest.importorskip("gguf_gemma")  # needs gguf-py


pytestmark = pytest.mark.usefixtures("own_cache")


_file = gguf_gemma.architecture_file


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", GEMMA, ids=str)
def test_numbers_as_they_are(case: Case, backend: Backend, tmp_path: Path) -> None:
    model = gguf_model(_file, case, tmp_path, as_numbers)
    check_numbers(model)
    compare(model, backend, 2e-4)


@pytest.mark.parametrize("case", GEMMA, ids=str)
def test_blocks_are_held(case: Case, cpu_backend: Backend, tmp_path: Path) -> None:
    def type_of(name: str) -> str:
        return "F32" if "coef" in name else "Q4_0" if "ffn" in name else "Q8_0"

    model = gguf_model(_file, case, tmp_path, type_of)
    check_numbers(model)
    program = build_program(read_config(resolve_model(str(model.file))))
    formats = [op.weight.format for op in program.ops if isinstance(op, Linear) and not op.exact]
    assert {format.table for format in formats if isinstance(format, GroupedFormat)} == {"s4", "s8"}
    compare(model, cpu_backend, 2e-2, 0.9)


def test_gates_and_ups_of_experts_apart(
    cpu_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_gemma.GemmaFile, "fused", False)
    model = gguf_model(_file, GEMMA[-1], tmp_path, as_numbers)
    check_numbers(model)
    compare(model, cpu_backend, 2e-4)


@pytest.mark.parametrize(
    ("case", "written", "named"),
    [
        (GEMMA[0], {"activation_sparsity_scale": None}, "activation_sparsity_scale is None"),
        (GEMMA[0], {"altup.num_inputs": 3}, "unexpected tensor"),
        (GEMMA[0], {"without": "blk.0.laurel_l.weight"}, "no laurel_l in layer 0"),
        (GEMMA[1], {"attention.head_count_kv": [2, 1] * 2 + [1, 2]}, "the same in all layers of a"),
        (GEMMA[1], {"feed_forward_length": [96, 97, 96, 96, 192, 192]}, "or twice that"),
        (GEMMA[1], {"rope.dimension_count_swa": 99}, "from 1 to 32"),
        (GEMMA[1], {"attention.key_length": 32, "attention.value_length": 32}, "and then 1e30"),
        (GEMMA[0], {"attention.shared_kv_layers": 6}, "num_kv_shared_layers"),
        (GEMMA[1], {"attention.sliding_window_pattern": [True] * 5}, "a list of 6 times"),
    ],
)
def test_lies_are_named(case: Case, written: dict[str, Any], named: str, tmp_path: Path) -> None:
    file = model_file(_file, case, tmp_path / "checkpoint").write(tmp_path / "m.gguf", **written)
    with pytest.raises(ModelError, match=named):
        check_binding(file)

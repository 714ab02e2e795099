"""GGUF files with recurrent layers and with latent attention, as gguf-py writes them: the numbers
that it says, bit for bit, and what transformers computes with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_harness import Model, as_numbers, check_numbers, compare, gguf_model
from gguf_hybrid_cases import EVEN_HYBRIDS, GGUF_HYBRIDS
from model_cases import Case
from model_harness import load

from quire.backends.base import Backend
from quire.config.model_lookup.hub import resolve_model
from quire.errors import CheckpointError

gguf_hybrids = pytest.importorskip("gguf_hybrids")  # needs gguf-py

OTHER_NUMBERS = ("qwen35", "qwen35moe", "falcon-h1")
"""Heads in another order, which is kept, or with factors that are part of the matrices."""
_FLOATS = ("conv", "ssm_a", "ssm_d", "ssm_norm")


pytestmark = pytest.mark.usefixtures("own_cache")


def _part(name: str, config: dict[str, Any], get: Callable[[str], Any]) -> Any:
    """Matrices of keys and values of a head, and the parts of Qwen3-Next's first matrix."""
    layer, _, kind = name.partition("self_attn.")
    if kind:
        part, head = kind.split(".")[:2]
        whole = get(f"{layer}self_attn.kv_b_proj.weight")
        of_head = whole.reshape(config["num_attention_heads"], -1, whole.shape[1])[int(head)]
        first = config["qk_nope_head_dim"]
        return of_head[:first].T if part == "k_b_proj" else of_head[first:]
    whole = get(name.partition("in_proj")[0] + "in_proj_qkvz.weight")
    heads, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    by_head = whole.reshape(heads, -1, whole.shape[1])
    parts = np.split(by_head, np.cumsum([dim, dim, values]), axis=1)
    rows = [part.reshape(-1, whole.shape[1]) for part in parts]
    return np.concatenate(rows[:3]) if "qkv" in name else rows[3]


def _model(
    architecture: str, case: Case, tmp_path: Path, type_of: Callable[[str], str], **written: Any
) -> Model:
    def kind(name: str, config: Any, tensors: Any) -> Any:  # noqa: ARG001
        return gguf_hybrids.HybridFile(architecture, config, tensors)

    return gguf_model(kind, case, tmp_path, type_of, **written)


@pytest.mark.sweep(8)
@pytest.mark.parametrize(("architecture", "case"), GGUF_HYBRIDS, ids=str)
def test_numbers_as_they_are(
    architecture: str, case: Case, backend: Backend, tmp_path: Path
) -> None:
    model = _model(architecture, case, tmp_path, as_numbers)
    if architecture not in OTHER_NUMBERS:
        check_numbers(model, _part)
    compare(model, backend, 2e-4)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kinds", [("Q8_0", "Q4_0"), ("Q5_1", "Q8_0")], ids=str)
@pytest.mark.parametrize(("architecture", "case"), EVEN_HYBRIDS, ids=str)
def test_blocks(
    architecture: str, case: Case, kinds: tuple[str, str], cpu_backend: Backend, tmp_path: Path
) -> None:
    def type_of(name: str) -> str:
        return "F32" if any(part in name for part in _FLOATS) else kinds["attn" in name]

    model = _model(architecture, case, tmp_path, type_of)
    if architecture not in OTHER_NUMBERS:
        check_numbers(model, _part)
    compare(model, cpu_backend, 2e-2, 0.9)


def test_decays_that_grow_are_refused(cpu_backend: Backend, tmp_path: Path) -> None:
    architecture, case = next(one for one in GGUF_HYBRIDS if one[0] == "mamba")
    model = _model(architecture, case, tmp_path, as_numbers)
    bad = {name: -array for name, array, _ in model.written.stored if name == "blk.0.ssm_a"}
    file = model.written.write(tmp_path / "bad.gguf", as_numbers, without="blk.0.ssm_a", extra=bad)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.ssm_a' must have negative numbers only"):
        load(resolve_model(str(file)), cpu_backend)

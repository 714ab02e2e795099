"""Factors of columns change no bit of a model in float32, whatever its family is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_harness
import numpy as np
import pytest
from model_harness import Runner, load
from numpy.typing import NDArray
from small_families import FAMILIES
from tiny_checkpoint import CONFIG, write_tiny_checkpoint

from quire.backends.base import Backend
from quire.models import build_program
from quire.program import Program
from quire.program.folds import Fold, folds
from quire.weights import WeightStore
from quire.weights.folded import FoldedStore

Floats = NDArray[np.float32]

FUSED: dict[str, dict[str, Any]] = {
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0},
}
"""Tensors that are parts of one another's weights."""
NUM_FOLDS = {
    "qwen3": 8, "qwen2_windows": 8, "gemma2": 8, "qwen2_moe": 8, "gpt2": 6, "mpt": 6, "phi3": 8,
}  # fmt: skip
"""Values with factors in two layers: four where a layer has a gate and an up, three where it has
not. Experts read one of them; of the others that a shared expert has, the down matrix reads one.
"""


def random_factors(fold: Fold, random: np.random.Generator) -> Floats:
    """Powers of two, the same for heads that share them."""
    own = np.exp2(random.integers(-3, 4, fold.value.dim)).astype(np.float32)
    heads = own.reshape(-1, fold.sharing, fold.head_dim)
    return np.broadcast_to(heads[:, :1], heads.shape).reshape(-1)


def config_of(family: str) -> dict[str, Any]:
    return {**CONFIG, **{**FAMILIES, **FUSED}[family]}


def logits_of(model: Path, backend: Backend) -> Floats:
    runner = Runner(load(model, backend))
    [logits] = runner.step([(runner.request(list(range(5, 45))), 40)])
    return logits


@pytest.mark.parametrize("family", [*FAMILIES, *FUSED])
def test_factors_change_nothing(
    family: str, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(family)
    model = write_tiny_checkpoint(tmp_path / "model", **config)
    expected = logits_of(model, backend)
    bind: Callable[[Program, WeightStore, Any], WeightStore] = model_harness.bind
    changed: list[str] = []

    def folded(program: Program, store: WeightStore, canonical: Any) -> WeightStore:
        random = np.random.default_rng(0)
        factors = {fold: random_factors(fold, random) for fold in folds(program)}
        bound = bind(program, store, canonical)
        found = FoldedStore(bound, factors)
        changed.extend(
            name
            for name in bound.names()
            if (found.get(name).to_float32() != bound.get(name).to_float32()).any()
        )
        return found

    monkeypatch.setattr(model_harness, "bind", folded)
    found = logits_of(model, backend)
    assert len(changed) >= NUM_FOLDS.get(family, 4)
    if family.startswith("gemma"):  # their norms add 1 to what a checkpoint holds
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", NUM_FOLDS)
def test_which_values_have_factors(family: str) -> None:
    found = folds(build_program(config_of(family)))
    assert len(found) == NUM_FOLDS[family]
    assert all(fold.divided and fold.matrices for fold in found)


def test_a_table_that_is_the_head_keeps_its_columns() -> None:
    for tied in (False, True):
        program = build_program({**CONFIG, "tie_word_embeddings": tied})
        assert all("head" not in one.name for fold in folds(program) for one in fold.matrices)

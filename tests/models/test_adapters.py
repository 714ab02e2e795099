"""LoRA adapters of every family against transformers, and rows that do not depend on others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from adapter_files import write_merged_checkpoint, write_random_adapter
from model_cases import CASES, Case, logits_of, logits_of_checkpoint, prompt_of
from model_harness import Runner, each_case, load, load_adapter

from quire.backends.base import Backend
from quire.backends.reference import ReferenceBackend

KINDS = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
}


COMMON = {
    "llama-5-layers-biases", "qwen2", "qwen3-biases", "gemma3-linear", "qwen3-moe", "gpt2", "phi3",
    "neox",
}  # fmt: skip
"""Families with what adapters meet: biases, head norms, experts, transposed and fused matrices."""
EVERY = [
    pytest.param(case, marks=[] if case.name in COMMON else pytest.mark.long) for case in CASES
]


case = each_case(EVERY)


@pytest.fixture(scope="module", params=["cpu", pytest.param("reference", marks=pytest.mark.long)])
def chosen(request: pytest.FixtureRequest) -> Backend:
    if request.param == "reference":
        return ReferenceBackend()
    found: Backend = request.getfixturevalue("cpu_backend")
    return found


@pytest.fixture(scope="module")
def runner(checkpoint: Path, chosen: Backend) -> Iterator[Runner]:
    model = load(checkpoint, chosen, max_lora_rank=8)
    yield Runner(model)
    model.close()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_merged_weights(
    case: Case, checkpoint: Path, runner: Runner, kind: str, tmp_path: Path
) -> None:
    folder = write_random_adapter(tmp_path / "adapter", checkpoint, 1, **KINDS[kind])
    merged = write_merged_checkpoint(tmp_path / "merged", checkpoint, folder)
    tokens = prompt_of(case, 90)
    request = runner.request(tokens)
    request.adapter = load_adapter(runner.model, checkpoint, folder)
    [found] = runner.step([(request, len(tokens))])
    truth = logits_of_checkpoint(merged, tokens, torch.float32)
    assert np.abs(found - truth).max() < 1e-3 * np.abs(truth).max()
    request.adapter = None
    request.computed = 0
    base = logits_of(case, tokens)
    [again] = runner.step([(request, len(tokens))])
    assert np.abs(again - base).max() < 1e-4 * np.abs(base).max()
    assert np.abs(base - truth).max() > 0.02 * np.abs(truth).max(), "the adapter changes nothing"

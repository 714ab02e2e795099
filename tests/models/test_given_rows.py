"""Rows given in place of embeddings, and given K and V, against transformers in every family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from model_cases import CASES, Case, prompt_of, reference_model
from model_harness import Runner, each_case, load
from numpy.typing import NDArray

from quire.backends.base import Backend
from quire.backends.given_rows import RowWidths
from quire.config.checkpoint.model_files import read_config
from quire.models import build_program
from quire.program import EmbedSlices

Floats = NDArray[np.float32]
COMMON = {
    "llama-5-layers-biases", "qwen3-biases", "gemma3-linear", "granite", "gpt2",
    "opt-after-projected",
}  # fmt: skip
"""Families with what given rows meet: scales of embeddings, windows, learned positions."""
EVERY = [
    pytest.param(case, marks=[] if case.name in COMMON else pytest.mark.long) for case in CASES
]
LENGTH = 60


case = each_case(EVERY)


@pytest.fixture(scope="module")
def runner(checkpoint: Path, cpu_backend: Backend) -> Iterator[Runner]:
    model = load(checkpoint, cpu_backend)
    yield Runner(model)
    model.close()


def widths_of(checkpoint: Path) -> RowWidths:
    program = build_program(read_config(checkpoint))
    if any(isinstance(op, EmbedSlices) for op in program.ops):
        pytest.skip("every layer looks up the token id")
    return RowWidths.of(program)


def close(found: Floats, truth: Floats) -> bool:
    return bool(np.abs(found - truth).max() < 1e-3 * np.abs(truth).max())


def test_embeddings_are_those_of_transformers(case: Case, checkpoint: Path, runner: Runner) -> None:
    width = widths_of(checkpoint).embedding
    model = reference_model(case, torch.float32)
    rows = np.random.default_rng(1).standard_normal((LENGTH, width), np.float32)
    with torch.no_grad():
        truth = model(inputs_embeds=torch.from_numpy(rows)[None]).logits[0].float().numpy()
    request = runner.request([0] * LENGTH)
    request.input_rows = rows
    [first], [rest] = runner.step([(request, 23)]), runner.step([(request, LENGTH - 23)])
    assert close(np.concatenate([first, rest]), truth)


def test_prefixes_are_those_of_transformers(case: Case, checkpoint: Path, runner: Runner) -> None:
    """As PEFT does with prefix tuning."""
    width, count = widths_of(checkpoint).kv, 7
    if not width:
        pytest.skip("the layers do not all keep K and V of one size")
    model = reference_model(case, torch.float32)
    config = model.config.get_text_config()
    layers, tokens = config.num_hidden_layers, prompt_of(case, LENGTH)
    kv = np.random.default_rng(2).standard_normal((count, width), np.float32)
    heads = torch.from_numpy(kv).view(count, 2 * layers, -1, _head_dim(config)).permute(1, 2, 0, 3)
    cache = transformers.DynamicCache(config=config)
    for layer in range(layers):
        cache.update(heads[2 * layer][None], heads[2 * layer + 1][None], layer)
    with torch.no_grad():
        truth = model(torch.tensor([tokens]), cache=cache).logits[0].float().numpy()
    request = runner.request([0] * count + tokens)
    request.given_kv = kv
    [first], [rest] = runner.step([(request, 4)]), runner.step([(request, LENGTH + 3)])
    del first
    assert close(rest[3:], truth)


def _head_dim(config: transformers.PreTrainedConfig) -> int:
    found = getattr(config, "head_dim", None)
    return int(found or config.hidden_size // config.num_attention_heads)

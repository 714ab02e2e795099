"""Adapters that PEFT itself makes and saves, against what PEFT computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import CASES, Floats, prompt_of, reference_model, write_checkpoint
from model_harness import Runner, load, load_adapter

from quire.backends.base import Backend

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PEFT and transformers

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NEW_TOKENS = 16
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "all linears": ("qwen2", {"target_modules": ALL}),
    "embeddings and head": (
        "llama-5-layers-biases", {"target_modules": [*ALL, "embed_tokens", "lm_head"]},
    ),
    "bias of B": ("qwen2", {"target_modules": ALL, "lora_bias": True}),
    "DoRA": ("qwen3-biases", {"target_modules": ALL, "use_dora": True}),
    "patterns": (
        "llama-5-layers-biases",
        {
            "target_modules": ALL, "use_rslora": True,
            "rank_pattern": {"q_proj": 2, r"layers\.1\..*down_proj": 9},
            "alpha_pattern": {"layers.0.self_attn.v_proj": 3},
        },
    ),
    "transposed weights": (
        "gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
    "scaled embeddings": ("gemma3-linear", {"target_modules": ["q_proj", "embed_tokens"]}),
    "a mixture's attention": ("qwen3-moe", {"target_modules": ["q_proj", "v_proj"]}),
}  # fmt: skip


QUICK = {"all linears", "embeddings and head", "DoRA", "transposed weights"}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.long) for one in KINDS],
)
def test_logits_and_greedy_text_are_those_of_peft(
    kind: str, cpu_backend: Backend, tmp_path: Path
) -> None:
    name, settings = KINDS[kind]
    [case] = [one for one in CASES if one.name == name]
    directory = write_checkpoint(case, tmp_path / "base")
    adapted = _adapted(type(reference_model(case, torch.float32)), directory, settings)
    adapted.save_pretrained(tmp_path / "adapter")
    model = load(directory, cpu_backend, max_lora_rank=16)
    runner, tokens = Runner(model), prompt_of(case, 40)
    request = runner.request(tokens, room=NEW_TOKENS)
    request.adapter = load_adapter(model, directory, tmp_path / "adapter")
    logits: list[Floats] = runner.step([(request, len(tokens))])
    for _ in range(NEW_TOKENS):
        request.tokens.append(int(logits[-1][-1].argmax()))
        logits += runner.step([(request, 1)])
    model.close()
    with torch.no_grad():
        truth = adapted(torch.tensor([request.tokens])).logits[0].numpy()
    assert np.abs(np.concatenate(logits) - truth).max() < 1e-3 * np.abs(truth).max()
    assert request.tokens[len(tokens) :] == truth.argmax(axis=1)[len(tokens) - 1 : -1].tolist()


def _adapted(kind: Any, directory: Path, settings: dict[str, Any]) -> Any:
    """A model with an adapter of random numbers."""
    model = kind.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    torch.manual_seed(3)
    config = peft.LoraConfig(r=5, lora_alpha=9, init_lora_weights=False, **settings)
    adapted = peft.get_peft_model(model.eval(), config)
    for name, weight in adapted.named_parameters():
        if "lora_magnitude" in name:
            weight.data *= 1 + 0.1 * torch.rand_like(weight)
        elif "lora_B" in name or "embedding_B" in name:
            weight.data *= 0.3
    return adapted.eval()

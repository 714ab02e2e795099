"""Adapters that PEFT itself makes and saves, against what PEFT computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_writer import write_adapter
from model_cases import (
    CASES,
    Case,
    Floats,
    logits_of_checkpoint,
    prompt_of,
    reference_model,
    write_checkpoint,
)
from model_harness import Runner, load, load_adapter

from quire.backends.base import Backend
from quire.config.engine_args import EngineArgs
from quire.planning.merge_adapter import merge_adapter

pytestmark = pytest.mark.filterwarnings("ignore")  # of PEFT and transformers

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
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
    "experts": (
        "qwen3-moe",
        {
            "target_modules": ["q_proj"], "target_parameters": [*EXPERTS, "mlp.gate.weight"],
            "rank_pattern": {"experts.down_proj": 2, r".*\.gate_up_proj": 6},
        },
    ),
    "one tensor of experts": ("mixtral", {"target_modules": [], "target_parameters": EXPERTS[1:]}),
    "experts with rows in turn": (
        "gpt-oss", {"target_modules": ["v_proj"], "target_parameters": EXPERTS},
    ),
    "transposed experts": ("llama4", {"target_modules": [], "target_parameters": EXPERTS}),
    "experts in one tensor": ("granitemoe", {"target_modules": [], "target_parameters": EXPERTS}),
    "a whole table that is the head, too": (
        "llama-1-layer-tied", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "a whole table and a head of the same numbers": (
        "llama-1-layer-tied",
        {
            "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "bias of a router": ("gemma3n", {"target_modules": ["modality_router"], "lora_bias": True}),
    "a router with another name": ("mixtral", {"target_modules": ["q_proj", "gate"]}),
}  # fmt: skip


QUICK = {
    "all linears", "embeddings and head", "DoRA", "transposed weights", "experts",
    "experts with rows in turn", "a whole table that is the head, too",
}  # fmt: skip
MERGED = {"experts", "one tensor of experts", "transposed experts", "experts in one tensor"}


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
    adapted = _adapted(_base(case, directory), settings)
    adapted.save_pretrained(tmp_path / "adapter")
    _compare(case, directory, tmp_path / "adapter", adapted, cpu_backend)
    if kind in MERGED:
        merge_adapter(EngineArgs(str(directory)), tmp_path / "adapter", tmp_path / "merged")
        tokens = prompt_of(case, 40)
        merged = logits_of_checkpoint(tmp_path / "merged", tokens, torch.float32)
        truth = _logits(adapted, tokens)
        assert np.abs(merged - truth).max() < 1e-3 * np.abs(truth).max()


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("mixtral", ["q_proj", "w1", "w2", "w3"]),
        pytest.param(
            "qwen3-moe-not-normalised",
            ["v_proj", "gate_proj", "up_proj", "down_proj"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_adapters_of_each_expert_are_those_of_peft(
    name: str, modules: list[str], cpu_backend: Backend, tmp_path: Path
) -> None:
    """As transformers 4 had them; PEFT converts them."""
    [case] = [one for one in CASES if one.name == name]
    directory = write_checkpoint(case, tmp_path / "base")
    folder = write_adapter(tmp_path / "adapter", directory, modules=modules)
    peft = pytest.importorskip("peft")
    adapted = peft.PeftModel.from_pretrained(_base(case, directory), folder).eval()
    _compare(case, directory, folder, adapted, cpu_backend)


def _compare(case: Case, directory: Path, folder: Path, adapted: Any, backend: Backend) -> None:
    """Quire's logits and greedy text with the adapter in a folder, and those of PEFT's model."""
    model = load(directory, backend, max_lora_rank=112)
    runner, tokens = Runner(model), prompt_of(case, 40)
    request = runner.request(tokens, room=NEW_TOKENS)
    request.adapter = load_adapter(model, directory, folder)
    logits: list[Floats] = runner.step([(request, len(tokens))])
    for _ in range(NEW_TOKENS):
        request.tokens.append(int(logits[-1][-1].argmax()))
        logits += runner.step([(request, 1)])
    model.close()
    truth = _logits(adapted, request.tokens)
    assert np.abs(np.concatenate(logits) - truth).max() < 1e-3 * np.abs(truth).max()
    assert request.tokens[len(tokens) :] == truth.argmax(axis=1)[len(tokens) - 1 : -1].tolist()


def _logits(model: Any, tokens: list[int]) -> Floats:
    with torch.no_grad():
        found: Floats = model(torch.tensor([tokens])).logits[0].numpy()
    return found


def _base(case: Case, directory: Path) -> Any:
    kind = type(reference_model(case, torch.float32))
    model = kind.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def _adapted(model: Any, settings: dict[str, Any]) -> Any:
    """The model with an adapter of random numbers."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(r=5, lora_alpha=9, init_lora_weights=False, **settings)
    adapted = peft.get_peft_model(model, config)
    for name, weight in adapted.named_parameters():
        if "modules_to_save" in name:
            weight.data += 0.1 * torch.randn_like(weight)
        elif "lora_magnitude" in name:
            weight.data *= 1 + 0.1 * torch.rand_like(weight)
        elif "lora_B" in name or "embedding_B" in name:
            weight.data *= 0.3
    return adapted.eval()

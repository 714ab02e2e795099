"""Random checkpoints of encoders that transformers does not have, and what they compute: Nomic
Embed 2, with experts in every other layer, and Jina Embeddings 3 with an adapter for each task.

Sources: nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py; jinaai/xlm-roberta-flash-
implementation, modeling_lora.py and mha.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch.nn import functional

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]
HIDDEN, HEADS, INNER, LAYERS, VOCAB, EPS, THETA = 48, 4, 70, 4, 131, 1e-5, 700.0
EXPERTS, TOP_K, RANK, ALPHA = 5, 2, 3, 2.0
TASKS = ["retrieval.query", "separation", "text-matching"]
NOMIC = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "vocab_size": VOCAB,
    "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_inner": INNER, "n_positions": 150,
    "layer_norm_epsilon": EPS, "rotary_emb_base": THETA, "rotary_emb_fraction": 1.0,
    "type_vocab_size": 1, "activation_function": "gelu", "num_experts": EXPERTS,
    "moe_top_k": TOP_K, "moe_every_n_layers": 2, "moe_normalize_expert_weights": False,
    "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "torch_dtype": "float32",
}  # fmt: skip
JINA = {
    "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "vocab_size": VOCAB,
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": INNER, "max_position_embeddings": 150, "type_vocab_size": 1,
    "position_embedding_type": "rotary", "rotary_emb_base": THETA, "layer_norm_eps": EPS,
    "hidden_act": "gelu", "torch_dtype": "float32", "lora_adaptations": TASKS,
    "lora_rank": RANK, "lora_alpha": ALPHA,
}  # fmt: skip


def _random(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    random = np.random.default_rng(5)
    return {
        name: (random.normal(size=shape) * (0.5 if len(shape) == 1 else 0.25)).astype(np.float32)
        for name, shape in shapes.items()
    }


def _matrices(layer: int, has_experts: bool) -> dict[str, tuple[int, ...]]:
    prefix = f"encoder.layers.{layer}."
    names = {"Wqkv": (3 * HIDDEN, HIDDEN), "out_proj": (HIDDEN, HIDDEN)}
    found = {f"{prefix}attn.{name}": shape for name, shape in names.items()}
    if not has_experts:
        found |= {f"{prefix}mlp.fc1": (INNER, HIDDEN), f"{prefix}mlp.fc2": (HIDDEN, INNER)}
    return found


def _shapes(with_experts: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.token_type_embeddings.weight": (1, HIDDEN),
    }
    norms = ["emb_ln"]
    for layer in range(LAYERS):
        prefix, has_experts = f"encoder.layers.{layer}.", with_experts and layer % 2 == 1
        for name, shape in _matrices(layer, has_experts).items():
            found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        if has_experts:
            found[f"{prefix}mlp.router.layer.weight"] = (EXPERTS, HIDDEN)
            for name in ("w1", "w2"):
                found[f"{prefix}mlp.experts.mlp.{name}"] = (EXPERTS * INNER, HIDDEN)
            found[f"{prefix}mlp.experts.bias"] = (HIDDEN,)
        norms += [f"{prefix}norm1", f"{prefix}norm2"]
    return found | {f"{name}.{kind}": (HIDDEN,) for name in norms for kind in ("weight", "bias")}


def _write(directory: Path, config: dict[str, Any], tensors: Tensors) -> None:
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))


def write_nomic(directory: Path, **settings: Any) -> Tensors:
    """A checkpoint of Nomic Embed 2, and its tensors."""
    tensors = _random(_shapes(with_experts=True))
    _write(directory, {**NOMIC, **settings}, tensors)
    return tensors


def write_jina(directory: Path) -> dict[str | None, Tensors]:
    """A checkpoint of Jina Embeddings 3, and the tensors that each task computes with; None: those
    without an adapter."""
    base = _random(_shapes(with_experts=False))
    by_task: dict[str | None, Tensors] = {None: base} | {task: dict(base) for task in TASKS}
    random, stored = np.random.default_rng(6), dict[str, Floats]()
    for name, array in base.items():
        is_matrix = array.ndim == 2 and "token_type" not in name
        outer = f"roberta.{name}".replace(".attn.", ".mixer.")
        if not is_matrix:
            stored[outer] = array
            continue
        rows, columns = array.shape
        first, second = (len(TASKS), RANK, columns), (len(TASKS), rows, RANK)
        if "embeddings" in name:
            first, second = (len(TASKS), rows, RANK), (len(TASKS), RANK, columns)
        a, b = (random.normal(size=s).astype(np.float32) * 0.3 for s in (first, second))
        beginning = outer.removesuffix("weight") + "parametrizations.weight."
        stored |= {f"{beginning}original": array, f"{beginning}0.lora_A": a,
                   f"{beginning}0.lora_B": b}  # fmt: skip
        for index, task in enumerate(TASKS):
            left, right = (a, b) if "embeddings" in name else (b, a)
            by_task[task][name] = array + ALPHA / RANK * (left[index] @ right[index])
    # A module that no vector is computed with.
    stored["roberta.pooler.dense.parametrizations.weight.original"] = np.eye(HIDDEN, dtype="f4")
    stored["roberta.pooler.dense.parametrizations.weight.0.lora_A"] = np.zeros(
        (len(TASKS), RANK, HIDDEN), np.float32
    )
    stored["roberta.pooler.dense.parametrizations.weight.0.lora_B"] = np.zeros(
        (len(TASKS), HIDDEN, RANK), np.float32
    )
    stored["roberta.pooler.dense.bias"] = np.zeros(HIDDEN, np.float32)
    _write(directory, JINA, stored)
    return by_task


def _rotated(x: torch.Tensor, part: float) -> torch.Tensor:
    size = int(x.shape[-1] * part)
    angles = torch.arange(x.shape[-2])[:, None] * THETA ** (-torch.arange(0, size, 2) / size)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :size].chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., size:]], dim=-1)


def states(tensors: Tensors, token_ids: list[int], part: float = 1.0) -> Floats:
    """The last hidden states of a text. `part`: the part of each head that is rotated."""
    have = {name: torch.from_numpy(array) for name, array in tensors.items()}

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, have[f"{name}.weight"], have.get(f"{name}.bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        size = (HIDDEN,)
        return functional.layer_norm(x, size, have[f"{name}.weight"], have[f"{name}.bias"], EPS)

    def mlp(x: torch.Tensor, prefix: str) -> torch.Tensor:
        if f"{prefix}router.layer.weight" not in have:
            return linear(functional.gelu(linear(x, f"{prefix}fc1")), f"{prefix}fc2")
        weights, chosen = torch.softmax(linear(x, f"{prefix}router.layer"), -1).topk(TOP_K)
        w1, w2 = (have[f"{prefix}experts.mlp.{name}"].view(EXPERTS, INNER, HIDDEN)
                  for name in ("w1", "w2"))  # fmt: skip
        rows = []
        for row, its_weights, its_experts in zip(x, weights, chosen, strict=True):
            each = [w * (functional.gelu(w1[e] @ row) @ w2[e])
                    for w, e in zip(its_weights, its_experts, strict=True)]  # fmt: skip
            rows.append(torch.stack(each).sum(0))
        return torch.stack(rows) + have[f"{prefix}experts.bias"]

    x = have["embeddings.word_embeddings.weight"][token_ids]
    x = norm(x + have["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for layer in range(LAYERS):
        prefix = f"encoder.layers.{layer}."
        parts = linear(x, f"{prefix}attn.Wqkv").view(len(token_ids), 3, HEADS, -1)
        q, k, v = (parts[:, part].transpose(0, 1) for part in range(3))
        q, k = _rotated(q, part), _rotated(k, part)
        weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1)
        attended = (weights @ v).transpose(0, 1).reshape(len(token_ids), HIDDEN)
        x = norm(linear(attended, f"{prefix}attn.out_proj") + x, f"{prefix}norm1")
        x = norm(mlp(x, f"{prefix}mlp.") + x, f"{prefix}norm2")
    return np.asarray(x.numpy())

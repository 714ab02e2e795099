"""Jina BERT 2, which transformers does not have: a random checkpoint, and what it computes.

Source: jinaai/jina-bert-implementation, modeling_bert.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch.nn import functional

Floats = NDArray[np.float32]
HIDDEN, HEADS, INNER, LAYERS, VOCAB, EPS = 48, 6, 70, 2, 131, 1e-12
CONFIG = {
    "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "vocab_size": VOCAB,
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": INNER, "max_position_embeddings": 150, "type_vocab_size": 2,
    "position_embedding_type": "alibi", "feed_forward_type": "geglu", "layer_norm_eps": EPS,
    "torch_dtype": "float32",
}  # fmt: skip


def _shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            found[f"{prefix}attention.{name}.weight"] = (HIDDEN, HIDDEN)
            found[f"{prefix}attention.{name}.bias"] = (HIDDEN,)
        found[f"{prefix}mlp.gated_layers.weight"] = (2 * INNER, HIDDEN)
        found[f"{prefix}mlp.wo.weight"] = (HIDDEN, INNER)
        found[f"{prefix}mlp.wo.bias"] = (HIDDEN,)
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}mlp.layernorm"]
    for name in norms:
        found |= {f"{name}.{kind}": (HIDDEN,) for kind in ("weight", "bias")}
    return found


def write_jina_bert(directory: Path) -> dict[str, Floats]:
    """A checkpoint, and its tensors."""
    random = np.random.default_rng(5)
    tensors = {
        name: (random.normal(size=shape) * (0.5 if len(shape) == 1 else 0.25)).astype(np.float32)
        for name, shape in _shapes().items()
    }
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return tensors


def states(tensors: dict[str, Floats], token_ids: list[int]) -> Floats:
    """The last hidden states of a text."""
    have = {name: torch.from_numpy(array) for name, array in tensors.items()}

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, have[f"{name}.weight"], have.get(f"{name}.bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(
            x, (HIDDEN,), have[f"{name}.weight"], have[f"{name}.bias"], EPS
        )

    x = have["embeddings.word_embeddings.weight"][token_ids]
    x = norm(x + have["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    place = torch.arange(len(token_ids))
    # Six heads: the slopes of four, and two of those of eight.
    slopes = torch.tensor([2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0])
    bias = -(place[:, None] - place[None]).abs() * slopes[:, None, None]
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{prefix}attention.self.{name}").view(len(place), HEADS, -1).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + bias, dim=-1)
        attended = (weights @ v).transpose(0, 1).reshape(len(place), HIDDEN)
        out = linear(attended, f"{prefix}attention.output.dense")
        x = norm(out + x, f"{prefix}attention.output.LayerNorm")
        gate, up = linear(x, f"{prefix}mlp.gated_layers").chunk(2, dim=-1)
        x = norm(
            linear(functional.gelu(gate) * up, f"{prefix}mlp.wo") + x, f"{prefix}mlp.layernorm"
        )
    return np.asarray(x.numpy())

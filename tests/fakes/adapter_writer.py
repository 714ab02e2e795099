"""Writes random adapters in PEFT's format, without PEFT."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_EMBEDDINGS = ("embed_tokens",)


def write_adapter(
    folder: Path,
    base: Path,
    seed: int = 0,
    *,
    rank: int = 4,
    modules: Sequence[str] = PROJECTIONS,
    size: float = 0.5,
    **config: Any,
) -> Path:
    """An adapter of the modules of a checkpoint whose names end with `modules`. `size`: that of
    B, relative to the weights. `config`: further keys of adapter_config.json."""
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, weight in sorted(load_file(base / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        last = module.rpartition(".")[2]
        if weight.ndim != 2 or not any(f".{module}".endswith(f".{one}") for one in modules):
            continue
        own = _own_rank(config.get("rank_pattern", {}), module, rank)
        rows, depth = weight.shape
        prefix = f"base_model.model.{module}"
        a = random.standard_normal((own, depth)) / np.sqrt(depth)
        b = size * random.standard_normal((rows, own)) / np.sqrt(own)
        if last in _EMBEDDINGS:
            tensors[f"{prefix}.lora_embedding_A"] = random.standard_normal((own, rows))
            tensors[f"{prefix}.lora_embedding_B"] = size * random.standard_normal((depth, own))
            continue
        tensors[f"{prefix}.lora_A.weight"], tensors[f"{prefix}.lora_B.weight"] = a, b
        if config.get("lora_bias"):
            tensors[f"{prefix}.lora_B.bias"] = 0.1 * random.standard_normal(rows)
        if config.get("use_dora"):
            norms = np.sqrt(np.square(weight).sum(axis=1))
            tensors[f"{prefix}.lora_magnitude_vector"] = norms * random.uniform(0.8, 1.2, rows)
    write_files(folder, tensors, r=rank, target_modules=list(modules), **config)
    return folder


def write_files(folder: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> None:
    """adapter_config.json and adapter_model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"peft_type": "LORA", "lora_alpha": 8, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    exact = {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}
    save_file(exact, folder / "adapter_model.safetensors")


def write_merged(
    folder: Path, base: Path, adapter: Path, transposed: Mapping[str, bool] | None = None
) -> Path:
    """A copy of the checkpoint with the adapter in its weights. `transposed`: tensors that are
    stored as [K, N]."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in base.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    weights = {k: v.astype(np.float64) for k, v in load_file(base / "model.safetensors").items()}
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
        if kind not in ("A.weight", "embedding_A"):
            continue
        rank = len(a)
        alpha = _matched(config.get("alpha_pattern", {}), module, config["lora_alpha"])
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        b = tensors[name.replace("_A", "_B")].astype(np.float64)
        change = scale * (b @ a.astype(np.float64))
        weight = weights[f"{module}.weight"]
        if (transposed or {}).get(f"{module}.weight"):
            weight = weights[f"{module}.weight"].T  # a view
        weight += change.T if kind == "embedding_A" else change
        magnitudes = tensors.get(f"base_model.model.{module}.lora_magnitude_vector")
        if magnitudes is not None:
            weight *= (magnitudes / np.sqrt(np.square(weight).sum(axis=1)))[:, None]
    exact = {name: np.asarray(w, np.float32, order="C") for name, w in weights.items()}
    save_file(exact, folder / "model.safetensors")
    return folder


def _own_rank(pattern: Mapping[str, int], module: str, rank: int) -> int:
    return int(_matched(pattern, module, rank))


def _matched(pattern: Mapping[str, float], module: str, default: float) -> float:
    ends = [number for key, number in pattern.items() if f".{module}".endswith(f".{key}")]
    return ends[0] if ends else default

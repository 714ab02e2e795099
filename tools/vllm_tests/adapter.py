"""`write_adapter`: a LoRA adapter of any model in a directory, for tests that load one by its name
on the hub."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

_RANK = 8
_TARGETS = {"q_proj": "num_attention_heads", "v_proj": "num_key_value_heads"}


def write_adapter(folder: Path, model: Path) -> None:
    """Writes the files of an adapter that changes the attention of the model; none for a model with
    images, and for a GGUF file, whose tensors have other names."""
    path = model / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    if "hidden_size" not in config:
        return
    width = config["hidden_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    random = np.random.default_rng(0)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, heads in _TARGETS.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes = {"lora_A": (_RANK, width), "lora_B": (config[heads] * head, _RANK)}
            for part, shape in shapes.items():
                values = random.normal(0, 0.05, shape).astype(np.float32)
                tensors[f"{place}.{part}.weight"] = values
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA", "r": _RANK, "lora_alpha": 2 * _RANK, "target_modules": [*_TARGETS],
        "base_model_name_or_path": "Qwen/Qwen3-0.6B", "task_type": "CAUSAL_LM", "bias": "none",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(described))

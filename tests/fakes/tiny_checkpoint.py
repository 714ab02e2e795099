"""Writes tiny random models with tokenizers: what a test needs to run the real engine.

Needs neither torch nor a network. Weights are of a size that leaves choices open.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quire.models import build_program

EOS = "<|end|>"

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 288,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def write_tiny_checkpoint(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    """A complete model directory; `overrides` are keys of config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **overrides}
    (directory / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    tensors = {
        part.name: tiny_values(random, part.name, part.shape)
        for param in build_program(config).params()
        for part in param.parts
    }
    save_file(tensors, directory / "model.safetensors")
    _write_tokenizer(directory)
    return directory


def tiny_values(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers for a tensor, of a size that suits its name."""
    noise = random.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        return 1 + 0.1 * noise if "norm" in name else 0.1 * noise
    return noise * np.float32(1.5 / np.sqrt(shape[-1]) if "embed" not in name else 1.0)


def _write_tokenizer(directory: Path) -> None:
    """Bytes, and one special token: every text has ids, every id has bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    settings = {"eos_token": EOS, "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 256}))

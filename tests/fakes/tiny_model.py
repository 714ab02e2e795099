"""A tiny random Qwen3 checkpoint with a byte-level tokenizer and a chat template.

Its text means nothing; its tokens are exact: one per byte, and three special ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 260, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    "hidden_act": "silu", "torch_dtype": "float32", "attention_bias": False, "eos_token_id": 258,
    "bos_token_id": 256,
}  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(directory: Path, seed: int = 0) -> Path:
    """Writes the checkpoint; returns its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", CONFIG)
    _write_json(directory / "generation_config.json", {"eos_token_id": [258, 256]})
    _write_tokenizer(directory)
    save_file(_weights(np.random.default_rng(seed)), directory / "model.safetensors")
    return directory


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _write_tokenizer(directory: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE},
    )


def _weights(random: np.random.Generator) -> dict[str, np.ndarray]:
    hidden, ffn, heads, kv_heads, head_dim = 64, 128, 4, 2, 16

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(CONFIG["vocab_size"], hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (heads * head_dim, hidden),
            "self_attn.k_proj": (kv_heads * head_dim, hidden),
            "self_attn.v_proj": (kv_heads * head_dim, hidden),
            "self_attn.o_proj": (hidden, heads * head_dim),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        for name, shape in shapes.items():
            weights[f"{prefix}{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = np.ones(hidden, np.float32)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            weights[f"{prefix}{name}.weight"] = np.ones(head_dim, np.float32)
    return weights

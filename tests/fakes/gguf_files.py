"""Writes GGUF files: raw ones, right or wrong, and models with all that llama.cpp does to them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.models import build_program

_NUMBERS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
            "i32": (5, "i"), "f32": (6, "f"), "u64": (10, "Q"), "i64": (11, "q"),
            "f64": (12, "d")}  # fmt: skip
Tensors = Mapping[str, NDArray[np.float32]]


class Typed:
    """A value of a type that Python's own does not say."""

    def __init__(self, kind: str, value: Any) -> None:
        self.kind, self.value = kind, value


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value: Any) -> bytes:
    """A value with its type: bool, int (u32), float (f32), str, a list of one of them, `Typed`."""
    code, raw = _plain(value)
    if not isinstance(value, list):
        return struct.pack("<I", code) + raw
    parts = [_plain(item) for item in value] or [(4, b"")]
    return struct.pack("<IIQ", 9, parts[0][0], len(value)) + b"".join(raw for _, raw in parts)


def _plain(value: Any) -> tuple[int, bytes]:
    if isinstance(value, Typed):
        code, letter = _NUMBERS[value.kind]
        return code, struct.pack(f"<{letter}", value.value)
    if isinstance(value, bool):
        return 7, bytes([value])
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if value >= 0 else (5, struct.pack("<i", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    return (8, text(value)) if isinstance(value, str) else (9, b"")


def entry(name: str, sizes: list[int], code: int, offset: int) -> bytes:
    """One tensor of the table; `sizes` the fastest first."""
    numbers = struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, code, offset)
    return text(name) + numbers


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, list[int], bytes]],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; `tensors`: type code, sizes with the fastest first, and bytes, by name."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value_bytes(value) for key, value in metadata.items())
    data = b""
    for name, (code, sizes, raw) in tensors.items():
        data += bytes(-len(data) % alignment)
        head += entry(name, sizes, code, len(data))
        data += raw
    return head + bytes(-len(head) % alignment) + data


def float_tensors(tensors: Tensors) -> dict[str, tuple[int, list[int], bytes]]:
    return {
        name: (0, list(reversed(array.shape)), array.astype("<f4").tobytes())
        for name, array in tensors.items()
    }


_PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.up_proj": "ffn_up",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def gguf_name(name: str, architecture: str) -> str:
    """llama.cpp's name of a tensor of transformers."""
    parts = {**_PARTS, **(_GEMMA_NORMS if architecture in ("gemma2", "gemma3") else {})}
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        layer, _, inner = module.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{parts[inner]}.{kind}"
    return f"{parts[module]}.{kind}"


def permuted(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp, conversion/llama.py, `permute`."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def as_llama_cpp_has_it(
    tensors: Tensors, architecture: str, config: Mapping[str, Any]
) -> dict[str, NDArray[np.float32]]:
    """The tensors under llama.cpp's names, after what its conversion does to them."""
    found = {}
    for name, array in tensors.items():
        if architecture in ("llama", "granite") and "q_proj" in name:
            array = permuted(array, config["num_attention_heads"])
        if architecture in ("llama", "granite") and "k_proj" in name:
            array = permuted(array, config["num_key_value_heads"])
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        found[gguf_name(name, architecture)] = array
    return found


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """A tensor for each part of the model's program, norms and biases random too."""
    random = np.random.default_rng(seed)
    parts = {part.name: part.shape for p in build_program(config).params() for part in p.parts}
    found = {}
    for name, shape in parts.items():
        noise = random.standard_normal(shape).astype(np.float32)
        found[name] = noise * np.float32(1.5 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.25)
    return found


def model_metadata(architecture: str, config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The keys that llama.cpp writes of a config.json."""
    keys = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        **more,
    }
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in keys.items()},
    }


def byte_level_metadata(vocab_size: int) -> dict[str, Any]:
    """A vocabulary of the 256 bytes, two merges, control tokens at the end, and fillers."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, "he", "hel", "<|im_start|>", "<|im_end|>"]
    kinds = [1] * (len(tokens) - 2) + [3, 3]
    fillers = [f"[PAD{index}]" for index in range(len(tokens), vocab_size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + fillers,
        "tokenizer.ggml.token_type": [Typed("i32", kind) for kind in kinds + [5] * len(fillers)],
        "tokenizer.ggml.merges": ["h e", "he l"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }


def write_model(
    path: Path,
    architecture: str,
    config: Mapping[str, Any],
    tensors: Tensors,
    added: Tensors | None = None,
    **more: Any,
) -> Path:
    """A whole model. `added`: tensors by their names in the file. `more`: keys of its architecture,
    without their beginning."""
    metadata = {
        **model_metadata(architecture, config, **more),
        **byte_level_metadata(config["vocab_size"]),
    }
    stored = as_llama_cpp_has_it(tensors, architecture, config)
    path.write_bytes(gguf_bytes(metadata, float_tensors({**stored, **(added or {})})))
    return path

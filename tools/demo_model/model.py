"""The demo model in plain torch (the Qwen3 architecture) and its Hugging Face form.

Parameters carry the names of `Qwen3ForCausalLM`, so that export is a copy of the state dict.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of the model."""

    vocab: int = 2048
    hidden: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 640
    context: int = 4096
    rope_theta: float = 100_000.0
    norm_eps: float = 1e-6

    def to_config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
        }


class Norm(nn.Module):
    """RMS norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention spelled out for short texts, where it beats the fused kernel on a CPU."""
    length = q.shape[2]
    if length > 512:
        fused: Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return fused
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    above = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = scores.float().masked_fill(above, float("-inf"))
    mixed: Tensor = scores.softmax(-1).to(v.dtype) @ v
    return mixed


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, inner, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_dim, shape.norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = (batch, length, -1, self.shape.head_dim)
        q = _rotate(self.q_norm(self.q_proj(x).view(split)), cos, sin).transpose(1, 2)
        k = _rotate(self.k_norm(self.k_proj(x).view(split)), cos, sin).transpose(1, 2)
        v = self.v_proj(x).view(split).transpose(1, 2)
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mixed = causal_attention(q, k, v)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class FeedForward(nn.Module):
    """The gated feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DemoModel(nn.Module):
    """The decoder with tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.norm_eps)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
        half = shape.head_dim // 2
        frequency = shape.rope_theta ** -(torch.arange(half).float() / half)
        angles = torch.outer(torch.arange(shape.context).float(), frequency)[:, None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits at the chosen places of the flattened batch."""
        length = ids.shape[1]
        cos, sin = self.get_buffer("cos")[:length], self.get_buffer("sin")[:length]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        chosen = self.norm(x.flatten(0, 1)[positions])
        return functional.linear(chosen, self.embed_tokens.weight).float()


def hugging_face_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state dict under its Hugging Face names, rounded to bf16."""
    return {f"model.{name}": value.to(torch.bfloat16) for name, value in state.items()}


def shipped_weights(directory: Path) -> dict[str, Tensor]:
    """The weights of a directory that `export` made, in fp32 under the names used here."""
    stored = load_file(directory / "model.safetensors")
    return {name.removeprefix("model."): value.float() for name, value in stored.items()}

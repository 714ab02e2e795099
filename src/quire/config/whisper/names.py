"""The modules of a Whisper model with their shapes, and their names in each format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in a format: some of the rows of an array."""

    array: str
    part: int = 0
    parts: int = 1
    """The tensor is part `part` of so many equal parts."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a layer. Names: of transformers, whisper.cpp and CTranslate2."""

    name: str
    ggml: str
    ct2: str
    part: int = 0
    parts: int = 1
    """CTranslate2 stores the rows of several modules as one matrix."""


_SELF = (
    Module("self_attn_layer_norm", "attn_ln", "self_attention/layer_norm"),
    Module("self_attn.q_proj", "attn.query", "self_attention/linear_0", 0, 3),
    Module("self_attn.k_proj", "attn.key", "self_attention/linear_0", 1, 3),
    Module("self_attn.v_proj", "attn.value", "self_attention/linear_0", 2, 3),
    Module("self_attn.out_proj", "attn.out", "self_attention/linear_1"),
)
_CROSS = (
    Module("encoder_attn_layer_norm", "cross_attn_ln", "attention/layer_norm"),
    Module("encoder_attn.q_proj", "cross_attn.query", "attention/linear_0"),
    Module("encoder_attn.k_proj", "cross_attn.key", "attention/linear_1", 0, 2),
    Module("encoder_attn.v_proj", "cross_attn.value", "attention/linear_1", 1, 2),
    Module("encoder_attn.out_proj", "cross_attn.out", "attention/linear_2"),
)
_MLP = (
    Module("final_layer_norm", "mlp_ln", "ffn/layer_norm"),
    Module("fc1", "mlp.0", "ffn/linear_0"),
    Module("fc2", "mlp.2", "ffn/linear_1"),
)
_OUTSIDE = {
    "encoder": (
        Module("conv1", "conv1", "conv1"),
        Module("conv2", "conv2", "conv2"),
        Module("embed_positions", "positional_embedding", "position_encodings"),
        Module("layer_norm", "ln_post", "layer_norm"),
    ),
    "decoder": (
        Module("embed_tokens", "token_embedding", "embeddings"),
        Module("embed_positions", "positional_embedding", "position_encodings"),
        Module("layer_norm", "ln", "layer_norm"),
    ),
}
"""Modules that are not in a layer."""


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a model."""

    name: str
    """Name in a checkpoint of transformers."""
    shape: Shape
    ggml: Place
    ct2: Place


def tensors_of(config: Config) -> Iterator[Named]:
    """All tensors of a model, by transformers' config.json. `proj_out.weight` is not among them: it
    is `model.decoder.embed_tokens.weight`."""
    for side, outside in _OUTSIDE.items():
        for module in outside:
            yield from _tensors(config, side, module, (f"{side}.", f"{side}/"))
        in_layers = (*_SELF, *(_CROSS if side == "decoder" else ()), *_MLP)
        for layer in range(config[f"{side}_layers"]):
            for module in in_layers:
                before = (f"{side}.blocks.{layer}.", f"{side}/layer_{layer}/")
                yield from _tensors(config, side, module, before, f"layers.{layer}.")


def _tensors(
    config: Config, side: str, module: Module, before: tuple[str, str], layer: str = ""
) -> Iterator[Named]:
    name = f"model.{side}.{layer}{module.name}."
    for leaf, shape in _shapes(config, side, module.name).items():
        ggml = f"{before[0]}{module.ggml}" + ("" if "positions" in name else f".{leaf}")
        ct2 = f"{before[1]}{module.ct2}/{_ct2_leaf(module.name, leaf)}"
        yield Named(name + leaf, shape, Place(ggml), Place(ct2, module.part, module.parts))


def _ct2_leaf(module: str, leaf: str) -> str:
    if module == "embed_positions":
        return "encodings"
    return {"weight": "gamma", "bias": "beta"}[leaf] if module.endswith("norm") else leaf


def _shapes(config: Config, side: str, module: str) -> dict[str, Shape]:
    """The shapes of a module's tensors. A bias of keys does not change a softmax over them, so
    Whisper has none."""
    dim, wide = config["d_model"], config[f"{side}_ffn_dim"]
    positions = "max_source_positions" if side == "encoder" else "max_target_positions"
    match module:
        case "conv1":
            return {"weight": (dim, config["num_mel_bins"], 3), "bias": (dim,)}
        case "conv2":
            return {"weight": (dim, dim, 3), "bias": (dim,)}
        case "embed_positions":
            return {"weight": (config[positions], dim)}
        case "embed_tokens":
            return {"weight": (config["vocab_size"], dim)}
        case "fc1":
            return {"weight": (wide, dim), "bias": (wide,)}
        case "fc2":
            return {"weight": (dim, wide), "bias": (dim,)}
    if module.endswith("k_proj"):
        return {"weight": (dim, dim)}
    return {"weight": (dim,) if module.endswith("norm") else (dim, dim), "bias": (dim,)}

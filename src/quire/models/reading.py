"""Reads the parts of a `DecoderSpec` that several families share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models.base import ACTIVATIONS
from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    ConfigReader,
)
from quire.models.rope import by_layer, rotary
from quire.models.spec import AttentionSpec, DecoderSpec, MlpSpec, NormSpec
from quire.program import Activation, HeadLayout, Rotary

LARGEST_FACTOR = 1e6


def read_spec(
    reader: ConfigReader,
    *,
    heads: HeadLayout | None = None,
    activation: Activation | None = None,
    rotaries: Sequence[Rotary | None] | None = None,
    interleaved: bool = False,
    mlp_size: int | None = None,
    biased: Literal["both", "attention", "none"] = "both",
) -> DecoderSpec:
    """Read Llama's spec; families change the result.

    `heads`: instead of those that Llama's keys give. `rotaries`: one per layer, instead of the same
    for all. `mlp_size`: replaces `intermediate_size`. `biased`: the parts to which `attention_bias`
    and `mlp_bias` apply.
    """
    heads = heads or read_heads(reader)
    num_layers = read_num_layers(reader)
    bias = reader.flag("attention_bias", False) and biased != "none"
    if rotaries is None:
        rotaries = (rotary(reader, heads.head_dim, interleaved=interleaved),) * num_layers
    return DecoderSpec(
        num_layers=num_layers,
        hidden_size=read_hidden_size(reader),
        vocab_size=reader.size("vocab_size", MAX_VOCAB, example=32000),
        norm=NormSpec(reader.number("rms_norm_eps", 0.0, 1.0, example=1e-6, default=1e-6)),
        attention=AttentionSpec(
            heads=heads,
            windows=(None,) * num_layers,
            rotaries=tuple(rotaries),
            qkv_bias=bias,
            out_bias=bias,
        ),
        mlp=MlpSpec(
            size=mlp_size or read_mlp_size(reader),
            activation=activation or read_activation(reader, "hidden_act"),
            bias=reader.flag("mlp_bias", False) and biased == "both",
        ),
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
    )


def read_activation(reader: ConfigReader, key: str, default: str = "silu") -> Activation:
    """Read the activation of the MLP."""
    return reader.choice(key, ACTIVATIONS, default=default)


def read_mlp_size(reader: ConfigReader, default: int | None = None) -> int:
    """Read F, the width of the MLP."""
    return reader.size("intermediate_size", MAX_FEED_FORWARD, example=11008, default=default)


def read_num_layers(reader: ConfigReader) -> int:
    """Read the number of layers."""
    return reader.size("num_hidden_layers", MAX_LAYERS, example=32)


def read_hidden_size(reader: ConfigReader) -> int:
    """Read D."""
    return reader.size("hidden_size", MAX_HIDDEN, example=4096)


def read_heads(reader: ConfigReader) -> HeadLayout:
    """Read N, K and H. Raises CheckpointError if they do not divide evenly."""
    num_heads = _num_heads(reader)
    num_kv_heads = reader.size("num_key_value_heads", MAX_HEADS, example=8, default=num_heads)
    if num_heads % num_kv_heads:
        raise reader.error(
            "num_key_value_heads", num_kv_heads, f"a divisor of {num_heads} heads", num_heads
        )
    default_head_dim = None
    if not reader.has("head_dim"):
        default_head_dim = split_heads(reader, read_hidden_size(reader), num_heads).head_dim
    head_dim = reader.size("head_dim", MAX_HEAD_DIM, example=128, default=default_head_dim)
    return HeadLayout(num_heads, num_kv_heads, head_dim)


def read_split_heads(reader: ConfigReader) -> HeadLayout:
    """Read heads that split hidden_size evenly; each has its own keys and values. For families
    whose class in transformers ignores `num_key_value_heads` and `head_dim`."""
    return split_heads(reader, read_hidden_size(reader), _num_heads(reader))


def _num_heads(reader: ConfigReader) -> int:
    return reader.size("num_attention_heads", MAX_HEADS, example=32)


def split_heads(reader: ConfigReader, hidden_size: int, num_heads: int) -> HeadLayout:
    """Return heads that split hidden_size evenly; each has its own keys and values."""
    if hidden_size % num_heads or hidden_size // num_heads > MAX_HEAD_DIM:
        raise CheckpointError(
            f"{reader.where}: hidden size {hidden_size} does not divide into {num_heads} heads of "
            f"at most {MAX_HEAD_DIM} numbers; {num_heads * 64} would"
        )
    return HeadLayout(num_heads, num_heads, hidden_size // num_heads)


def read_factor(reader: ConfigReader, key: str, default: float = 1.0) -> float:
    """Read a positive factor."""
    return reader.number(key, 1.0 / LARGEST_FACTOR, LARGEST_FACTOR, example=1.0, default=default)


def read_cap(reader: ConfigReader, key: str) -> float | None:
    """Read an upper limit; None if there is none."""
    return read_factor(reader, key) if reader.has(key) else None


def read_window(reader: ConfigReader, default: int | None = None) -> int:
    """Read `sliding_window`."""
    return reader.size("sliding_window", MAX_POSITIONS, example=4096, default=default)


def every_window(reader: ConfigReader) -> tuple[int | None, ...]:
    """Return `sliding_window` for all layers, or None for all."""
    window = read_window(reader) if reader.has("sliding_window") else None
    return (window,) * read_num_layers(reader)


def pattern_windows(reader: ConfigReader, pattern: int) -> tuple[int | None, ...]:
    """Return the windows from `layer_types`, or a window in every layer except each `pattern`-th
    one."""
    num_layers = read_num_layers(reader)
    types = read_layer_types(reader)
    if types is None:
        slides = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    else:
        slides = [kind == "sliding_attention" for kind in types]
    window = read_window(reader, 4096) if any(slides) else None
    return tuple(window if slide else None for slide in slides)


def qwen_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """Return the windows if `use_sliding_window` is set: from `layer_types`, or in every layer from
    `max_window_layers` on."""
    num_layers = read_num_layers(reader)
    window = None
    if reader.flag("use_sliding_window", False):
        window = read_window(reader, 4096)
    types = read_layer_types(reader)
    if types is None:
        first = reader.count("max_window_layers", MAX_LAYERS, default=28)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if window is None and "sliding_attention" in types:
        raise reader.error(
            "use_sliding_window", False, "true if layer_types has sliding_attention", True
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def read_layer_types(reader: ConfigReader, local: str = "sliding_attention") -> list[str] | None:
    """Read `layer_types`, each full_attention or `local`; None if the key is missing."""
    types = reader.texts("layer_types", read_num_layers(reader))
    for kind in types or ():
        if kind not in ("full_attention", local):
            raise UnsupportedModelError(
                f"{reader.where}: layer_types has {kind!r}; known are full_attention, {local}"
            )
    return types


def refuse_layer_types(reader: ConfigReader) -> None:
    """Refuse `layer_types` with other kinds than full_attention, for families without windows."""
    types = reader.texts("layer_types", read_num_layers(reader)) or ()
    for kind in types:
        if kind != "full_attention":
            raise UnsupportedModelError(
                f"{reader.where}: layer_types {kind!r} is not supported here"
            )


def refuse_flags(reader: ConfigReader, *keys: str) -> None:
    """Refuse flags that are set, because their features are not implemented."""
    for key in keys:
        if reader.has(key) and not reader.is_false(key):
            raise UnsupportedModelError(f"{reader.where}: {key} is not supported")


def rotaries_by_kind(
    reader: ConfigReader, windows: Sequence[int | None], local: ConfigReader | None = None
) -> tuple[Rotary, ...]:
    """Return the rotary embedding of each layer, which depends on whether the layer has a window.

    There are two forms: `rope_parameters` per kind of layer; or one set for all layers, which
    applies only to layers without a window if `local` has the set of the others.
    """
    head_dim = read_heads(reader).head_dim
    kinds = by_layer(reader)
    full = rotary(reader, head_dim, scaling=kinds.section("full_attention"))
    window = full
    if scaling := kinds.section("sliding_attention") or local:
        window = rotary(reader, head_dim, scaling=scaling)
    return tuple(full if size is None else window for size in windows)

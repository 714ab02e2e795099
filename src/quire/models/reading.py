"""From a config.json to the parts of a `DecoderSpec`: what several families read alike."""

from __future__ import annotations

from collections.abc import Sequence

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
from quire.models.rope import rotary
from quire.models.spec import AttentionSpec, DecoderSpec, MlpSpec, NormSpec
from quire.program import Activation, HeadLayout, Rotary

LARGEST_FACTOR = 1e6


def read_spec(
    reader: ConfigReader,
    name: str,
    *,
    activation: Activation | None = None,
    rotaries: Sequence[Rotary | None] | None = None,
    interleaved: bool = False,
    mlp_size: int | None = None,
) -> DecoderSpec:
    """Llama's reading of a config.json; families change the result.

    `rotaries`: of each layer, instead of the same in all. `mlp_size`: instead of
    `intermediate_size`.
    """
    heads = read_heads(reader)
    num_layers = read_num_layers(reader)
    bias = reader.flag("attention_bias", False)
    if rotaries is None:
        rotaries = (rotary(reader, heads.head_dim, interleaved=interleaved),) * num_layers
    return DecoderSpec(
        name=name,
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
            bias=reader.flag("mlp_bias", False),
        ),
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
    )


def read_activation(reader: ConfigReader, key: str, default: str = "silu") -> Activation:
    """The activation of the MLP."""
    return reader.choice(key, ACTIVATIONS, default=default)


def read_mlp_size(reader: ConfigReader, default: int | None = None) -> int:
    """F."""
    return reader.size("intermediate_size", MAX_FEED_FORWARD, example=11008, default=default)


def read_num_layers(reader: ConfigReader) -> int:
    """The number of layers."""
    return reader.size("num_hidden_layers", MAX_LAYERS, example=32)


def read_hidden_size(reader: ConfigReader) -> int:
    """D."""
    return reader.size("hidden_size", MAX_HIDDEN, example=4096)


def read_heads(reader: ConfigReader) -> HeadLayout:
    """N, K and H. Raises CheckpointError if they do not divide evenly."""
    num_heads = reader.size("num_attention_heads", MAX_HEADS, example=32)
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


def split_heads(reader: ConfigReader, hidden_size: int, num_heads: int) -> HeadLayout:
    """Heads that share hidden_size evenly, each with keys and values of its own."""
    if hidden_size % num_heads or hidden_size // num_heads > MAX_HEAD_DIM:
        raise CheckpointError(
            f"{reader.where}: hidden size {hidden_size} does not divide into {num_heads} heads of "
            f"at most {MAX_HEAD_DIM} numbers; {num_heads * 64} would"
        )
    return HeadLayout(num_heads, num_heads, hidden_size // num_heads)


def read_factor(reader: ConfigReader, key: str, default: float = 1.0) -> float:
    """A positive factor."""
    return reader.number(key, 1.0 / LARGEST_FACTOR, LARGEST_FACTOR, example=1.0, default=default)


def read_cap(reader: ConfigReader, key: str) -> float | None:
    """A bound; None where there is none."""
    return read_factor(reader, key) if reader.has(key) else None


def read_window(reader: ConfigReader, default: int | None = None) -> int:
    """`sliding_window`."""
    return reader.size("sliding_window", MAX_POSITIONS, example=4096, default=default)


def every_window(reader: ConfigReader) -> tuple[int | None, ...]:
    """`sliding_window` in all layers, or in none."""
    window = read_window(reader) if reader.has("sliding_window") else None
    return (window,) * read_num_layers(reader)


def pattern_windows(reader: ConfigReader, pattern: int) -> tuple[int | None, ...]:
    """`layer_types`, or a window in every layer but each `pattern`-th."""
    num_layers = read_num_layers(reader)
    types = read_layer_types(reader)
    if types is None:
        slides = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    else:
        slides = [kind == "sliding_attention" for kind in types]
    window = read_window(reader, 4096) if any(slides) else None
    return tuple(window if slide else None for slide in slides)


def qwen_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """Windows if `use_sliding_window` is set: `layer_types`, or every layer from
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
        raise reader.error("use_sliding_window", False, "true where layer_types slide", True)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def read_layer_types(reader: ConfigReader, local: str = "sliding_attention") -> list[str] | None:
    """`layer_types`, each full_attention or `local`; None where the key is missing."""
    types = reader.texts("layer_types", read_num_layers(reader))
    for kind in types or ():
        if kind not in ("full_attention", local):
            raise UnsupportedModelError(
                f"{reader.where}: layer_types has {kind!r}; known are full_attention, {local}"
            )
    return types


def refuse_layer_types(reader: ConfigReader) -> None:
    """For families without windows: refuses `layer_types` with another kind of layer."""
    types = reader.texts("layer_types", read_num_layers(reader)) or ()
    for kind in types:
        if kind != "full_attention":
            raise UnsupportedModelError(
                f"{reader.where}: layer_types {kind!r} is not supported here"
            )


def refuse_flags(reader: ConfigReader, *keys: str) -> None:
    """Refuses keys that are set: what they switch on is not implemented."""
    for key in keys:
        if reader.has(key) and not reader.is_false(key):
            raise UnsupportedModelError(f"{reader.where}: {key} is not supported")


def rotaries_by_kind(
    reader: ConfigReader, windows: Sequence[int | None], local: ConfigReader | None = None
) -> tuple[Rotary, ...]:
    """The rotary embedding of each layer, by whether it has a window.

    Two forms: `rope_parameters` by kind of layer; or one for all layers, or for those without a
    window if `local` has that of the others.
    """
    head_dim = read_heads(reader).head_dim
    kinds = reader.section("rope_parameters") or ConfigReader({}, reader.where)
    full = rotary(reader, head_dim, scaling=kinds.section("full_attention"))
    window = full
    if scaling := kinds.section("sliding_attention") or local:
        window = rotary(reader, head_dim, scaling=scaling)
    return tuple(full if size is None else window for size in windows)

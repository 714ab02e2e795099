"""The decoder that Llama, Mistral and Qwen share: RMS norms, rotary attention, gated MLP.

A family reads its config.json into a `DecoderSpec`; the differences are values there.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models.base import ACTIVATIONS, ModelFacts, NameMap
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
from quire.models.rope import rotary, scaled_positions
from quire.program import Activation, Builder, HeadLayout, Out, Program, Rotary, Tensor, Value


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Everything that decides the program of this kind of model."""

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    heads: HeadLayout
    norm_eps: float
    activation: Activation
    rotary: Rotary
    windows: tuple[int | None, ...]
    """One a layer: tokens seen, or None for all."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool
    """RMS norms on each head of q and k (Qwen3)."""
    tie_word_embeddings: bool


def read_spec(
    reader: ConfigReader,
    name: str,
    *,
    windows: tuple[int | None, ...] | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    head_norms: bool = False,
    default_head_dim: int | None = None,
) -> DecoderSpec:
    """The spec of a config.json; what the families read differently is passed in."""
    heads = read_heads(reader, default_head_dim)
    num_layers = read_num_layers(reader)
    return DecoderSpec(
        name=name,
        num_layers=num_layers,
        hidden_size=reader.size("hidden_size", MAX_HIDDEN, example=4096),
        intermediate_size=reader.size("intermediate_size", MAX_FEED_FORWARD, example=11008),
        vocab_size=reader.size("vocab_size", MAX_VOCAB, example=32000),
        heads=heads,
        norm_eps=reader.number("rms_norm_eps", 0.0, 1.0, example=1e-6, default=1e-6),
        activation=reader.choice("hidden_act", ACTIVATIONS, default="silu"),
        rotary=rotary(reader, heads.head_dim),
        windows=windows or (None,) * num_layers,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=mlp_bias,
        head_norms=head_norms,
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
    )


def read_num_layers(reader: ConfigReader) -> int:
    """The number of layers."""
    return reader.size("num_hidden_layers", MAX_LAYERS, example=32)


def read_heads(reader: ConfigReader, default_head_dim: int | None = None) -> HeadLayout:
    """N, K and H, which divide as they must."""
    num_heads = reader.size("num_attention_heads", MAX_HEADS, example=32)
    num_kv_heads = reader.size("num_key_value_heads", MAX_HEADS, example=8, default=num_heads)
    if num_heads % num_kv_heads:
        raise reader.error(
            "num_key_value_heads", num_kv_heads, f"a divisor of {num_heads} heads", num_heads
        )
    if not reader.has("head_dim") and default_head_dim is None:
        hidden_size = reader.size("hidden_size", MAX_HIDDEN, example=4096)
        default_head_dim = split_heads(reader, hidden_size, num_heads).head_dim
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


def read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """Qwen's sliding windows: `layer_types`, or every layer from `max_window_layers` on."""
    num_layers = read_num_layers(reader)
    window = None
    if reader.flag("use_sliding_window", False):
        window = reader.size("sliding_window", MAX_POSITIONS, example=4096, default=4096)
    types = reader.texts("layer_types", num_layers)
    if types is None:
        first = reader.count("max_window_layers", MAX_LAYERS, default=28)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"{reader.where}: layer_types has {kind!r}; "
                "known are full_attention, sliding_attention"
            )
    if window is None and "sliding_attention" in types:
        raise reader.error("use_sliding_window", False, "true where layer_types slide", True)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def refuse_layer_types(reader: ConfigReader) -> None:
    """For families whose layers all see everything: `layer_types` may only say so."""
    types = reader.texts("layer_types", read_num_layers(reader)) or ()
    for kind in types:
        if kind != "full_attention":
            raise UnsupportedModelError(
                f"{reader.where}: layer_types {kind!r} is not supported here"
            )


def build_decoder(spec: DecoderSpec) -> Program:
    """The program."""
    builder = Builder(spec.name)
    table = Tensor("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
    x = builder.embed(table)
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = _layer(builder, x, spec, layer)
    x = builder.rms_norm(x, "model.norm.weight", spec.norm_eps)
    untied = Tensor("lm_head.weight", (spec.vocab_size, spec.hidden_size))
    builder.logits(x, table if spec.tie_word_embeddings else untied)
    return builder.program()


def _layer(builder: Builder, x: Value, spec: DecoderSpec, layer: int) -> Value:
    prefix = f"model.layers.{layer}"
    normed = builder.rms_norm(x, f"{prefix}.input_layernorm.weight", spec.norm_eps)
    x = builder.add(x, _attention(builder, normed, spec, layer))
    normed = builder.rms_norm(
        x, f"{prefix}.post_attention_layernorm.weight", spec.norm_eps, "mlp_norm"
    )
    return builder.add(x, _mlp(builder, normed, spec, f"{prefix}.mlp"))


def _attention(builder: Builder, x: Value, spec: DecoderSpec, layer: int) -> Value:
    prefix, heads, bias = f"model.layers.{layer}.self_attn", spec.heads, spec.qkv_bias
    outs = [
        Out("q", f"{prefix}.q_proj", heads.q_dim, bias),
        Out("k", f"{prefix}.k_proj", heads.kv_dim, bias),
        Out("v", f"{prefix}.v_proj", heads.kv_dim, bias),
    ]
    q, k, v = builder.linears(x, outs, hint="qkv")
    if spec.head_norms:
        q = builder.head_norm(q, f"{prefix}.q_norm.weight", spec.norm_eps, heads.head_dim, "q_norm")
        k = builder.head_norm(k, f"{prefix}.k_norm.weight", spec.norm_eps, heads.head_dim, "k_norm")
    q = builder.rope(q, heads.head_dim, spec.rotary, "q_rope")
    k = builder.rope(k, heads.head_dim, spec.rotary, "k_rope")
    attended = builder.attention(q, k, v, heads, window=spec.windows[layer])
    return builder.linear(
        attended, f"{prefix}.o_proj", spec.hidden_size, bias=spec.out_bias, shard="row", hint="o"
    )


def _mlp(builder: Builder, x: Value, spec: DecoderSpec, prefix: str) -> Value:
    outs = [
        Out("gate", f"{prefix}.gate_proj", spec.intermediate_size, spec.mlp_bias),
        Out("up", f"{prefix}.up_proj", spec.intermediate_size, spec.mlp_bias),
    ]
    gate, up = builder.linears(x, outs, hint="gate_up")
    hidden = builder.glu(gate, up, spec.activation)
    return builder.linear(
        hidden,
        f"{prefix}.down_proj",
        spec.hidden_size,
        bias=spec.mlp_bias,
        shard="row",
        hint="down",
    )


def decoder_facts(spec: DecoderSpec, reader: ConfigReader) -> ModelFacts:
    """The sizes of a decoder."""
    windows = [window for window in spec.windows if window is not None]
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=spec.heads.num_heads,
        num_kv_heads=spec.heads.num_kv_heads,
        head_dim=spec.heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=scaled_positions(reader, spec.heads.head_dim),
        sliding_window=max(windows) if len(windows) == spec.num_layers else None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=spec.tie_word_embeddings,
    )


def decoder_names(reader: ConfigReader) -> NameMap:
    """`model.` or bare; rotary tables are ignored, and the head of a tied model."""
    ignorable = [r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"]
    if reader.flag("tie_word_embeddings", False):
        ignorable.append(r"lm_head\.weight")
    return NameMap("model.", (), tuple(ignorable))

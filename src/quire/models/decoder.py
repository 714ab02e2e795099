"""The decoder that Llama, Mistral, Qwen and others share: RMS norms, rotary attention, gated MLP.

A family reads its config.json into a `DecoderSpec`, whose values describe the differences.
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
class Rotaries:
    """The rotary embeddings of layers without a window, and of those with one."""

    full: Rotary
    window: Rotary


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """All values that the program of a decoder depends on."""

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
    """For each layer, the positions that a token sees; None: all."""
    window_rotary: Rotary | None
    """The rotary embedding of layers with a window, if it differs (Gemma 3)."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool
    """RMS norms on each head of q and k (Qwen3)."""
    tie_word_embeddings: bool
    numbers: DecoderNumbers


@dataclass(frozen=True, slots=True)
class DecoderNumbers:
    """Factors and soft caps that most models do not have."""

    norm_offset: float = 0.0
    """Added to the weight of every norm (Gemma: 1)."""
    output_norms: bool = False
    """Norms on the outputs of attention and MLP too, before they are added (Gemma 2 and 3)."""
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor on the outputs of attention and MLP before they are added (Granite)."""
    attention_scale: float | None = None
    """Factor on q.k; None: 1 / sqrt(H)."""
    attention_softcap: float | None = None
    logits_scale: float = 1.0
    logits_softcap: float | None = None


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
    default_tie: bool = False,
    activation: Activation | None = None,
    rotaries: Rotaries | None = None,
    numbers: DecoderNumbers | None = None,
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
        activation=activation or read_activation(reader, "hidden_act"),
        rotary=rotaries.full if rotaries else rotary(reader, heads.head_dim),
        windows=windows or (None,) * num_layers,
        window_rotary=rotaries.window if rotaries else None,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=mlp_bias,
        head_norms=head_norms,
        tie_word_embeddings=reader.flag("tie_word_embeddings", default_tie),
        numbers=numbers or DecoderNumbers(),
    )


def read_activation(reader: ConfigReader, key: str, default: str = "silu") -> Activation:
    """The activation of the MLP."""
    return reader.choice(key, ACTIVATIONS, default=default)


def read_num_layers(reader: ConfigReader) -> int:
    """The number of layers."""
    return reader.size("num_hidden_layers", MAX_LAYERS, example=32)


def read_heads(reader: ConfigReader, default_head_dim: int | None = None) -> HeadLayout:
    """N, K and H. Raises CheckpointError if they do not divide evenly."""
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
    """For families without windows: refuses `layer_types` with another kind of layer."""
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
    x = builder.embed(table, spec.numbers.embed_scale)
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = _layer(builder, x, spec, layer)
    x = _norm(builder, x, spec, "model.norm", "norm")
    untied = Tensor("lm_head.weight", (spec.vocab_size, spec.hidden_size))
    builder.logits(
        x,
        table if spec.tie_word_embeddings else untied,
        scale=spec.numbers.logits_scale,
        softcap=spec.numbers.logits_softcap,
    )
    return builder.program()


def _layer(builder: Builder, x: Value, spec: DecoderSpec, layer: int) -> Value:
    prefix = f"model.layers.{layer}"
    normed = _norm(builder, x, spec, f"{prefix}.input_layernorm", "norm")
    attended = _attention(builder, normed, spec, layer)
    if not spec.numbers.output_norms:
        x = _add(builder, x, attended, spec)
        normed = _norm(builder, x, spec, f"{prefix}.post_attention_layernorm", "mlp_norm")
        return _add(builder, x, _mlp(builder, normed, spec, f"{prefix}.mlp"), spec)
    attended = _norm(builder, attended, spec, f"{prefix}.post_attention_layernorm", "o_norm")
    x = _add(builder, x, attended, spec)
    normed = _norm(builder, x, spec, f"{prefix}.pre_feedforward_layernorm", "mlp_norm")
    out = _mlp(builder, normed, spec, f"{prefix}.mlp")
    out = _norm(builder, out, spec, f"{prefix}.post_feedforward_layernorm", "down_norm")
    return _add(builder, x, out, spec)


def _norm(builder: Builder, x: Value, spec: DecoderSpec, prefix: str, hint: str) -> Value:
    offset = spec.numbers.norm_offset
    return builder.rms_norm(x, f"{prefix}.weight", spec.norm_eps, hint, weight_offset=offset)


def _add(builder: Builder, x: Value, out: Value, spec: DecoderSpec) -> Value:
    factor = spec.numbers.residual_scale
    return builder.add(x, out if factor == 1.0 else builder.scale(out, factor))


def _attention(builder: Builder, x: Value, spec: DecoderSpec, layer: int) -> Value:
    prefix, heads, bias = f"model.layers.{layer}.self_attn", spec.heads, spec.qkv_bias
    outs = [
        Out("q", f"{prefix}.q_proj", heads.q_dim, bias),
        Out("k", f"{prefix}.k_proj", heads.kv_dim, bias),
        Out("v", f"{prefix}.v_proj", heads.kv_dim, bias),
    ]
    q, k, v = builder.linears(x, outs, hint="qkv")
    if spec.head_norms:
        q = _head_norm(builder, q, spec, f"{prefix}.q_norm", "q_norm")
        k = _head_norm(builder, k, spec, f"{prefix}.k_norm", "k_norm")
    window = spec.windows[layer]
    rotary = spec.rotary if window is None else spec.window_rotary or spec.rotary
    q = builder.rope(q, heads.head_dim, rotary, "q_rope")
    k = builder.rope(k, heads.head_dim, rotary, "k_rope")
    attended = builder.attention(
        q,
        k,
        v,
        heads,
        scale=spec.numbers.attention_scale,
        window=window,
        softcap=spec.numbers.attention_softcap,
    )
    return builder.linear(
        attended, f"{prefix}.o_proj", spec.hidden_size, bias=spec.out_bias, hint="o"
    )


def _head_norm(builder: Builder, x: Value, spec: DecoderSpec, prefix: str, hint: str) -> Value:
    offset, dim = spec.numbers.norm_offset, spec.heads.head_dim
    return builder.head_norm(x, f"{prefix}.weight", spec.norm_eps, dim, hint, weight_offset=offset)


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
        hint="down",
    )


def decoder_facts(
    spec: DecoderSpec, reader: ConfigReader, scaling: ConfigReader | None = None
) -> ModelFacts:
    """The sizes of a decoder; `scaling` as in `rotary`."""
    windows = [window for window in spec.windows if window is not None]
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=spec.heads.num_heads,
        num_kv_heads=spec.heads.num_kv_heads,
        head_dim=spec.heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=scaled_positions(reader, spec.heads.head_dim, scaling),
        sliding_window=max(windows) if len(windows) == spec.num_layers else None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=spec.tie_word_embeddings,
    )


def decoder_names(reader: ConfigReader, *, default_tie: bool = False) -> NameMap:
    """`model.` or bare; rotary tables are ignored, and the head of a tied model."""
    ignorable = [r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"]
    if reader.flag("tie_word_embeddings", default_tie):
        ignorable.append(r"lm_head\.weight")
    return NameMap("model.", (), tuple(ignorable))

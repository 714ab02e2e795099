"""MPT: ALiBi instead of positions, layer norms without bias, q, k and v in one matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quire.errors import UnsupportedModelError
from quire.models.base import ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    ConfigReader,
)
from quire.models.decoder import split_heads
from quire.program import Builder, HeadLayout, Out, Program, Tensor, Value


@dataclass(frozen=True, slots=True)
class _Spec:
    num_layers: int
    hidden_size: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    heads: HeadLayout
    slopes: tuple[float, ...]
    scale: float | None
    norm_eps: float
    tie_word_embeddings: bool


def _spec(reader: ConfigReader) -> _Spec:
    attention = reader.section("attn_config") or ConfigReader({}, reader.where)
    if not attention.flag("alibi", True):
        raise UnsupportedModelError(f"{reader.where}: MPT without alibi is not supported")
    for key in ("clip_qkv", "qk_ln", "prefix_lm", "attn_uses_sequence_id"):
        if attention.has(key) and not attention.is_false(key):
            raise UnsupportedModelError(f"{attention.where}: {key} is not supported")
    hidden_size = reader.size("d_model", MAX_HIDDEN, example=2048)
    num_heads = reader.size("n_heads", MAX_HEADS, example=16)
    ratio = reader.size("expansion_ratio", MAX_FEED_FORWARD // hidden_size, example=4, default=4)
    bias_max = attention.number("alibi_bias_max", 1e-3, 1e3, example=8, default=8)
    scale = None
    if attention.has("softmax_scale"):
        scale = attention.number("softmax_scale", 1e-6, 1e3, example=0.125)
    return _Spec(
        num_layers=reader.size("n_layers", MAX_LAYERS, example=24),
        hidden_size=hidden_size,
        ffn_size=ratio * hidden_size,
        vocab_size=reader.size("vocab_size", MAX_VOCAB, example=50368),
        max_positions=reader.size("max_seq_len", MAX_POSITIONS, example=2048),
        heads=split_heads(reader, hidden_size, num_heads),
        slopes=alibi_slopes(num_heads, bias_max),
        scale=scale,
        norm_eps=reader.number("layer_norm_epsilon", 0.0, 1.0, example=1e-5, default=1e-5),
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
    )


def alibi_slopes(num_heads: int, bias_max: float) -> tuple[float, ...]:
    """The slope of each head. Source: Press et al. 2021, "Train Short, Test Long", section 3; for
    head counts that are no power of two, MPT's own order of the next power's slopes."""
    power = 2 ** math.ceil(math.log2(num_heads))
    slopes = [2.0 ** -(index * bias_max / power) for index in range(1, power + 1)]
    if power != num_heads:
        slopes = [*slopes[1::2], *slopes[::2]][:num_heads]
    return tuple(slopes)


def _build(reader: ConfigReader) -> Program:
    spec = _spec(reader)
    builder = Builder("mpt")
    table = Tensor("transformer.wte.weight", (spec.vocab_size, spec.hidden_size))
    x = builder.embed(table)
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = _layer(builder, x, spec, f"transformer.blocks.{layer}")
    x = _norm(builder, x, spec, "transformer.norm_f", "norm")
    untied = Tensor("lm_head.weight", (spec.vocab_size, spec.hidden_size))
    builder.logits(x, table if spec.tie_word_embeddings else untied)
    return builder.program()


def _layer(builder: Builder, x: Value, spec: _Spec, prefix: str) -> Value:
    normed = _norm(builder, x, spec, f"{prefix}.norm_1", "norm")
    outs = [Out(name, f"{prefix}.attn.Wqkv", spec.hidden_size) for name in "qkv"]
    q, k, v = builder.split_linear(normed, outs, hint="qkv")
    attended = builder.attention(q, k, v, spec.heads, scale=spec.scale, alibi_slopes=spec.slopes)
    out = builder.linear(
        attended, f"{prefix}.attn.out_proj", spec.hidden_size, bias=False, hint="o"
    )
    x = builder.add(x, out)
    hidden = _norm(builder, x, spec, f"{prefix}.norm_2", "mlp_norm")
    hidden = builder.linear(hidden, f"{prefix}.ffn.up_proj", spec.ffn_size, bias=False, hint="up")
    hidden = builder.act(hidden, "gelu")
    out = builder.linear(
        hidden, f"{prefix}.ffn.down_proj", spec.hidden_size, bias=False, hint="down"
    )
    return builder.add(x, out)


def _norm(builder: Builder, x: Value, spec: _Spec, prefix: str, hint: str) -> Value:
    return builder.layer_norm(x, prefix, spec.norm_eps, has_bias=False, hint=hint)


def _facts(reader: ConfigReader) -> ModelFacts:
    spec = _spec(reader)
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=spec.heads.num_heads,
        num_kv_heads=spec.heads.num_kv_heads,
        head_dim=spec.heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=spec.max_positions,
        sliding_window=None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=spec.tie_word_embeddings,
    )


def _names(reader: ConfigReader) -> NameMap:
    ignorable = [r"lm_head\.weight"] if reader.flag("tie_word_embeddings", True) else []
    return NameMap("transformer.", (), tuple(ignorable))


FAMILY = ModelFamily("mpt", ("MptForCausalLM",), _build, _facts, _names)

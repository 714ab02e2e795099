"""OPT: learned positions, ReLU, layer norms before each block or (350m) after it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.models.base import ACTIVATIONS, ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCAB,
    ConfigReader,
)
from quire.models.reading import split_heads
from quire.program import Activation, Builder, HeadLayout, Out, Program, Tensor, Value

_POSITION_OFFSET = 2
"""The first rows of the position table were reserved for padding."""
_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class _Spec:
    num_layers: int
    hidden_size: int
    embed_size: int
    """Width of the embedding and the head; if it differs from hidden_size, two projections
    convert."""
    ffn_size: int
    vocab_size: int
    num_positions: int
    heads: HeadLayout
    activation: Activation
    norm_first: bool
    final_norm: bool
    bias: bool
    affine: bool
    tie_word_embeddings: bool


def _spec(reader: ConfigReader) -> _Spec:
    hidden_size = reader.size("hidden_size", MAX_HIDDEN, example=768)
    norm_first = reader.flag("do_layer_norm_before", True)
    return _Spec(
        num_layers=reader.size("num_hidden_layers", MAX_LAYERS, example=12),
        hidden_size=hidden_size,
        embed_size=reader.size("word_embed_proj_dim", MAX_HIDDEN, example=512, default=hidden_size),
        ffn_size=reader.size("ffn_dim", MAX_FEED_FORWARD, example=3072),
        vocab_size=reader.size("vocab_size", MAX_VOCAB, example=50272),
        num_positions=reader.size("max_position_embeddings", MAX_POSITIONS, example=2048),
        heads=split_heads(
            reader, hidden_size, reader.size("num_attention_heads", MAX_HEADS, example=12)
        ),
        activation=reader.choice("activation_function", ACTIVATIONS, default="relu"),
        norm_first=norm_first,
        final_norm=norm_first and not reader.flag("_remove_final_layer_norm", False),
        bias=reader.flag("enable_bias", True),
        affine=reader.flag("layer_norm_elementwise_affine", True),
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
    )


def _build(reader: ConfigReader) -> Program:
    spec = _spec(reader)
    builder = Builder("opt")
    root = "model.decoder"
    table = Tensor(f"{root}.embed_tokens.weight", (spec.vocab_size, spec.embed_size))
    positions = (spec.num_positions + _POSITION_OFFSET, spec.hidden_size)
    x = builder.embed(table)
    if spec.embed_size != spec.hidden_size:
        x = builder.linear(x, f"{root}.project_in", spec.hidden_size, bias=False, hint="project_in")
    x = builder.learned_positions(
        x, Tensor(f"{root}.embed_positions.weight", positions), _POSITION_OFFSET
    )
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = _layer(builder, x, spec, f"{root}.layers.{layer}")
    if spec.final_norm:
        x = _norm(builder, x, spec, f"{root}.final_layer_norm", "norm")
    if spec.embed_size != spec.hidden_size:
        x = builder.linear(
            x, f"{root}.project_out", spec.embed_size, bias=False, hint="project_out"
        )
    untied = Tensor("lm_head.weight", (spec.vocab_size, spec.embed_size))
    builder.logits(x, table if spec.tie_word_embeddings else untied)
    return builder.program()


def _layer(builder: Builder, x: Value, spec: _Spec, prefix: str) -> Value:
    """Add a layer. The norm is before each block, inside the residual, or after it, outside."""
    for block, norm in ((_attention, "self_attn_layer_norm"), (_mlp, "final_layer_norm")):
        inner = _norm(builder, x, spec, f"{prefix}.{norm}", norm) if spec.norm_first else x
        x = builder.add(x, block(builder, inner, spec, prefix))
        if not spec.norm_first:
            x = _norm(builder, x, spec, f"{prefix}.{norm}", norm)
    return x


def _norm(builder: Builder, x: Value, spec: _Spec, prefix: str, hint: str) -> Value:
    return builder.layer_norm(x, prefix, _EPS, affine=spec.affine, hint=hint)


def _attention(builder: Builder, x: Value, spec: _Spec, prefix: str) -> Value:
    outs = [
        Out(name, f"{prefix}.self_attn.{name}_proj", spec.hidden_size, spec.bias) for name in "qkv"
    ]
    q, k, v = builder.linears(x, outs, hint="qkv")
    attended = builder.attention(q, k, v, spec.heads)
    out_proj = f"{prefix}.self_attn.out_proj"
    return builder.linear(attended, out_proj, spec.hidden_size, bias=spec.bias, hint="o")


def _mlp(builder: Builder, x: Value, spec: _Spec, prefix: str) -> Value:
    hidden = builder.linear(x, f"{prefix}.fc1", spec.ffn_size, bias=spec.bias, hint="fc1")
    hidden = builder.act(hidden, spec.activation)
    return builder.linear(hidden, f"{prefix}.fc2", spec.hidden_size, bias=spec.bias, hint="fc2")


def _facts(reader: ConfigReader) -> ModelFacts:
    spec = _spec(reader)
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=spec.heads.num_heads,
        num_kv_heads=spec.heads.num_kv_heads,
        head_dim=spec.heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=spec.num_positions,
        sliding_window=None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=spec.tie_word_embeddings,
    )


def _names(reader: ConfigReader) -> NameMap:
    ignorable = [r"model\.decoder\.version"]
    if reader.flag("tie_word_embeddings", True):
        ignorable.append(r"lm_head\.weight")
    return NameMap("model.decoder.", ("decoder.",), tuple(ignorable))


FAMILY = ModelFamily(
    "opt",
    ("OPTForCausalLM",),
    _build,
    _facts,
    _names,
    models="OPT, Galactica",
)

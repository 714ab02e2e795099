"""Encoders: `EncoderSpec`, the values in which families differ, and the programs built from it.

Tokens see each other in both directions, so nothing is kept in a cache and a text is computed in
one step. An encoder has no head; `pooling/` adds what follows its hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from quire.errors import UnsupportedModelError
from quire.models.base import ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import ConfigReader
from quire.models.experts import MoeSpec, mixture
from quire.program import (
    Activation,
    Builder,
    HeadLayout,
    NormKind,
    Out,
    Param,
    Rotary,
    Tensor,
    Value,
)

if TYPE_CHECKING:
    from quire.config.pooling import PoolingType
    from quire.models.pooling.head import PoolingHead


_OTHER_ENDINGS = (
    (".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"),
    (".parametrizations.weight.original", ".weight"),  # of a module with adapters of Jina
)  # fmt: skip
_ADAPTERS = r".*\.parametrizations\.weight\.0\.lora_[AB]"


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names of the checkpoint's tensors; those of a layer are relative to the layer."""

    root: str = "bert."
    embed: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    types: str = "embeddings.token_type_embeddings"
    embed_norm: str = "embeddings.LayerNorm"
    layers: str = "encoder.layer"
    final_norm: str | None = None
    q: str = "attention.self.query"
    k: str = "attention.self.key"
    v: str = "attention.self.value"
    qkv: str = ""
    """The name of one tensor with the rows of q, k and v; "": there are three."""
    q_norm: str = ""
    """The name of a norm over all heads of q; "": q and k have none."""
    k_norm: str = ""
    out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    gate: str = ""
    """The name of the gate; equal to `up`: one tensor has the rows of both."""
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"
    attention_factors: str = ""
    """A tensor whose numbers the output of attention is multiplied with; "": there is none."""
    mlp_factors: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """Which linear layers and norms have a bias."""

    qkv: bool = True
    k: bool = True
    """Whether K has one too, if Q and V have."""
    out: bool = True
    up: bool = True
    down: bool = True
    norms: bool = True


@dataclass(frozen=True, slots=True)
class RelativeBiases:
    """Biases of attention scores by distance, the same for all layers (MPNet)."""

    name: str
    num_buckets: int
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """All values that determine an encoder's program."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    heads: HeadLayout
    mlp_size: int
    activation: Activation
    eps: float
    max_model_len: int
    position_rows: int = 0
    """Rows of the table of learned positions; 0: there is none."""
    position_offset: int = 0
    """The row of a text's first token."""
    num_types: int = 0
    """Rows of the table of token types; 0: there is none."""
    norm_first: bool = False
    """Whether norms are before each block, inside the residual, instead of after it."""
    first_norm: bool = True
    """Whether the first layer has a norm before its attention."""
    gate_first: bool = True
    """Whether a tensor with the rows of both has those of the gate first."""
    biases: Biases = Biases()
    rotaries: tuple[Rotary | None, ...] = ()
    """Per layer; empty: there are none."""
    windows: tuple[int | None, ...] = ()
    """Per layer, the distance from which on tokens do not see each other; empty: there is none."""
    alibi_slopes: tuple[float, ...] | None = None
    relative: RelativeBiases | None = None
    names: EncoderNames = EncoderNames()
    experts: tuple[MoeSpec | None, ...] = ()
    """Per layer, the experts that replace the MLP, or None; empty: no layer has experts."""
    norm_kind: NormKind = "layer"
    qk_norm_eps: float = 1e-6
    spans: tuple[bool, ...] = ()
    """Per layer, whether tokens see their span alone, see the op `Attention`; empty: none does."""


def encoder_family(
    name: str,
    architectures: tuple[str, ...],
    spec: Callable[[ConfigReader], EncoderSpec],
    *,
    models: str,
    keys: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    classifier: Callable[[Builder, ConfigReader, Value, PoolingHead], Value] | None = None,
    classifier_pooling: Callable[[ConfigReader], PoolingType] = lambda _: "cls",
    other_prefixes: tuple[str, ...] = (),
    ignorable: tuple[str, ...] = (),
) -> ModelFamily:
    """Make a family whose programs follow from an `EncoderSpec`; the arguments are those of
    `decoder_family`, with BERT's keys, and fields of `ModelFamily`."""

    def read(reader: ConfigReader) -> EncoderSpec:
        return spec(reader.translated(keys or {}, defaults or {}))

    def refuse(reader: ConfigReader) -> NoReturn:
        raise UnsupportedModelError(
            f"{reader.where}: {architectures[0]} is an encoder, which cannot generate text; use "
            "runner='pooling' (or 'auto') for vectors and classes"
        )

    def names(reader: ConfigReader) -> NameMap:
        found = read(reader).names
        patterns = (r".*\.position_ids", r".*\.inv_freq", _ADAPTERS, *ignorable)
        return NameMap(found.root, other_prefixes, patterns, (), renamed=_OTHER_ENDINGS)

    return ModelFamily(
        name=name,
        architectures=architectures,
        build=refuse,
        facts=lambda reader: _facts(read(reader), reader),
        names=names,
        models=models,
        hidden=lambda builder, reader: encoder_hidden(builder, read(reader)),
        classifier=classifier,
        classifier_pooling=classifier_pooling,
        is_encoder=True,
    )


def encoder_hidden(builder: Builder, spec: EncoderSpec) -> Value:
    """Write an encoder up to its last hidden states."""
    names, root = spec.names, spec.names.root
    x = builder.embed(Tensor(f"{root}{names.embed}.weight", (spec.vocab_size, spec.hidden_size)))
    if spec.position_rows:
        table = Tensor(f"{root}{names.positions}.weight", (spec.position_rows, spec.hidden_size))
        x = builder.learned_positions(x, table, spec.position_offset)
    if spec.num_types:
        types = Tensor(f"{root}{names.types}.weight", (spec.num_types, spec.hidden_size))
        x = builder.token_types(x, types)
    x = _norm(builder, x, spec, root + names.embed_norm, "embed_norm")
    biases = None
    if spec.relative is not None:
        rule = spec.relative
        biases = builder.relative_biases(root + rule.name, rule.num_buckets, spec.heads.num_heads)
    x = encoder_layers(builder, x, spec, biases)
    if names.final_norm is not None:
        x = _norm(builder, x, spec, root + names.final_norm, "norm")
    return x


def encoder_layers(
    builder: Builder, x: Value, spec: EncoderSpec, biases: Param | None = None
) -> Value:
    """Write the layers. `biases`: of attention scores, by distance."""
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = encoder_layer(builder, x, spec, layer, biases)
    return x


def encoder_layer(
    builder: Builder, x: Value, spec: EncoderSpec, layer: int, biases: Param | None = None
) -> Value:
    """Write one layer."""
    names = spec.names
    prefix = f"{names.root}{names.layers}.{layer}."
    attention_norm, mlp_norm = prefix + names.attention_norm, prefix + names.mlp_norm
    if spec.norm_first:
        has_norm = layer > 0 or spec.first_norm
        normed = _norm(builder, x, spec, attention_norm, "norm") if has_norm else x
        x = builder.add(x, _attention(builder, normed, spec, layer, biases))
        normed = _norm(builder, x, spec, mlp_norm, "mlp_norm")
        return builder.add(x, _mlp(builder, normed, spec, layer))
    x = builder.add(x, _attention(builder, x, spec, layer, biases))
    x = _norm(builder, x, spec, attention_norm, "norm")
    x = builder.add(x, _mlp(builder, x, spec, layer))
    return _norm(builder, x, spec, mlp_norm, "mlp_norm")


def _norm(builder: Builder, x: Value, spec: EncoderSpec, prefix: str, hint: str) -> Value:
    if spec.norm_kind == "rms":
        return builder.rms_norm(x, f"{prefix}.weight", spec.eps, hint)
    return builder.layer_norm(x, prefix, spec.eps, has_bias=spec.biases.norms, hint=hint)


def _attention(
    builder: Builder, x: Value, spec: EncoderSpec, layer: int, biases: Param | None
) -> Value:
    names, heads = spec.names, spec.heads
    prefix = f"{names.root}{names.layers}.{layer}."
    outs = _qkv(spec, prefix)
    if spec.biases.k:
        q, k, v = builder.linears(x, outs, hint="qkv")
    else:
        q, v = builder.linears(x, outs[::2], hint="qv")
        k = builder.linear(x, outs[1].prefix, heads.q_dim, bias=False, hint="k")
    if names.q_norm:
        q = builder.rms_norm(q, f"{prefix}{names.q_norm}.weight", spec.qk_norm_eps, "q_norm")
        k = builder.rms_norm(k, f"{prefix}{names.k_norm}.weight", spec.qk_norm_eps, "k_norm")
    rotary = spec.rotaries[layer] if spec.rotaries else None
    if rotary is not None:
        q = builder.rope(q, heads.head_dim, rotary, "q_rope")
        k = builder.rope(k, heads.head_dim, rotary, "k_rope")
    attended = builder.attention(
        q,
        k,
        v,
        heads,
        window=spec.windows[layer] if spec.windows else None,
        alibi_slopes=spec.alibi_slopes,
        is_causal=False,
        relative=biases,
        buckets=() if spec.relative is None else spec.relative.buckets,
        spans=bool(spec.spans) and spec.spans[layer],
    )
    out = builder.linear(
        attended, prefix + names.out, spec.hidden_size, bias=spec.biases.out, hint="o"
    )
    if not names.attention_factors:
        return out
    return builder.weigh(out, prefix + names.attention_factors, spec.hidden_size, "o_factors")


def _qkv(spec: EncoderSpec, prefix: str) -> list[Out]:
    names, dim, bias = spec.names, spec.heads.q_dim, spec.biases.qkv
    if not names.qkv:
        places = {"q": names.q, "k": names.k, "v": names.v}
        return [Out(hint, prefix + place, dim, bias) for hint, place in places.items()]
    return Out.stacked(prefix + names.qkv, [(hint, dim) for hint in "qkv"], bias)


def _mlp(builder: Builder, x: Value, spec: EncoderSpec, layer: int) -> Value:
    names, size, biases = spec.names, spec.mlp_size, spec.biases
    prefix = f"{names.root}{names.layers}.{layer}."
    moe = spec.experts[layer] if spec.experts else None
    if moe is not None:
        return mixture(builder, x, moe, prefix)
    if not names.gate:
        hidden = builder.linear(x, prefix + names.up, size, bias=biases.up, hint="up")
        hidden = builder.act(hidden, spec.activation)
    else:
        outs = [
            Out("gate", prefix + names.gate, size, biases.up),
            Out("up", prefix + names.up, size, biases.up),
        ]
        if names.gate == names.up:
            order = ("gate", "up") if spec.gate_first else ("up", "gate")
            outs = Out.stacked(prefix + names.up, [(hint, size) for hint in order], biases.up)
            if not spec.gate_first:
                outs.reverse()
        gate, up = builder.linears(x, outs, hint="gate_up")
        hidden = builder.glu(gate, up, spec.activation)
    out = builder.linear(
        hidden, prefix + names.down, spec.hidden_size, bias=biases.down, hint="down"
    )
    if not names.mlp_factors:
        return out
    return builder.weigh(out, prefix + names.mlp_factors, spec.hidden_size, "down_factors")


def _facts(spec: EncoderSpec, reader: ConfigReader) -> ModelFacts:
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=spec.heads.num_heads,
        num_kv_heads=spec.heads.num_kv_heads,
        head_dim=spec.heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=spec.max_model_len,
        sliding_window=None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=False,
    )

"""Whisper: a decoder over the rows of an encoder of sounds, which `media/whisper.py` has.

The first positions of a request are the encoder's rows. The program keeps their K and V for each
layer, in the places where the layer keeps those of the decoder's tokens at their own positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import UnsupportedModelError
from quire.models.base import ACTIVATIONS, ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import (
    MAX_FEED_FORWARD,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_VOCAB,
    ConfigReader,
)
from quire.models.reading import split_heads
from quire.program import Activation, Builder, HeadLayout, Out, Program, Tensor, Value

ALIGNMENT_HEADS = "alignment_heads"
"""Key of config.json for the heads from which times of words are computed."""
_ROOT = "model.decoder."
_HEAD = "proj_out"
_EPS = 1e-5
_MAX_POSITIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Spec:
    """The sizes of the decoder."""

    num_layers: int
    hidden_size: int
    heads: HeadLayout
    mlp_size: int
    activation: Activation
    vocab_size: int
    num_positions: int
    num_sources: int
    is_tied: bool
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(layer, head) of attention to the sources whose K and q are given to the caller."""

    @property
    def embedding(self) -> Tensor:
        """The table of tokens."""
        return Tensor(f"{_ROOT}embed_tokens.weight", (self.vocab_size, self.hidden_size))


def _spec(reader: ConfigReader) -> _Spec:
    """`scale_embedding` is not read, as in transformers' class."""
    hidden = reader.size("d_model", MAX_HIDDEN, example=512)
    num_heads = reader.size("decoder_attention_heads", MAX_HEADS, example=8)
    if reader.flag("use_weighted_layer_sum", False):
        raise UnsupportedModelError("config.json: use_weighted_layer_sum must be false")
    return _Spec(
        num_layers=reader.size("decoder_layers", MAX_LAYERS, example=6),
        hidden_size=hidden,
        heads=split_heads(reader, hidden, num_heads),
        mlp_size=reader.size("decoder_ffn_dim", MAX_FEED_FORWARD, example=2048),
        activation=reader.choice("activation_function", ACTIVATIONS, default="gelu"),
        vocab_size=reader.size("vocab_size", MAX_VOCAB, example=51865),
        num_positions=reader.size("max_target_positions", _MAX_POSITIONS, example=448, default=448),
        num_sources=reader.size("max_source_positions", _MAX_POSITIONS, example=1500, default=1500),
        is_tied=reader.flag("tie_word_embeddings", True),
        alignment_heads=_alignment_heads(reader),
    )


def _alignment_heads(reader: ConfigReader) -> tuple[tuple[int, int], ...]:
    """The heads in the order of layers; none if the configuration does not name them."""
    layers = reader.size("decoder_layers", MAX_LAYERS, example=6)
    heads = reader.size("decoder_attention_heads", MAX_HEADS, example=8)
    found = reader.raw(ALIGNMENT_HEADS) or []
    known = [[layer, head] for layer in range(layers) for head in range(heads)]
    if not isinstance(found, list | tuple) or any(one not in known for one in found):
        wanted = f"a list of pairs of a layer below {layers} and a head below {heads}"
        raise reader.error(ALIGNMENT_HEADS, found, wanted, [[0, 0]])
    return tuple(sorted({(layer, head) for layer, head in found}))


def _build(reader: ConfigReader) -> Program:
    spec, builder = _spec(reader), Builder("whisper")
    rows = builder.embed(spec.embedding)
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            prefix = f"{_ROOT}layers.{layer}.encoder_attn."
            k, v = _keys_and_values(builder, rows, spec, prefix, "source_")
            builder.keep_sources(k, v, spec.heads, layer)
            _give_heads(builder, k, spec, layer)
    builder.end_sources(spec.num_sources)
    x = builder.embed(spec.embedding)
    positions = Tensor(f"{_ROOT}embed_positions.weight", (spec.num_positions, spec.hidden_size))
    x = builder.learned_positions(x, positions, -spec.num_sources)
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = _layer(builder, x, spec, layer)
    x = builder.layer_norm(x, f"{_ROOT}layer_norm", _EPS, hint="norm")
    head = Tensor(f"{_HEAD}.weight", (spec.vocab_size, spec.hidden_size))
    builder.logits(x, spec.embedding if spec.is_tied else head)
    return builder.program()


def _layer(builder: Builder, x: Value, spec: _Spec, layer: int) -> Value:
    prefix, dim = f"{_ROOT}layers.{layer}.", spec.hidden_size
    normed = builder.layer_norm(x, f"{prefix}self_attn_layer_norm", _EPS, hint="norm")
    own = f"{prefix}self_attn."
    q = builder.linear(normed, f"{own}q_proj", dim, bias=True, hint="q")
    k, v = _keys_and_values(builder, normed, spec, own, "")
    seen = builder.attention(q, k, v, spec.heads, first_key=spec.num_sources)
    x = builder.add(x, builder.linear(seen, f"{own}out_proj", dim, bias=True, hint="o"))
    normed = builder.layer_norm(x, f"{prefix}encoder_attn_layer_norm", _EPS, hint="source_norm")
    sources = f"{prefix}encoder_attn."
    q = builder.linear(normed, f"{sources}q_proj", dim, bias=True, hint="source_q")
    _give_heads(builder, q, spec, layer)
    seen = builder.attention(q, None, None, spec.heads, layer=layer, num_keys=spec.num_sources)
    x = builder.add(x, builder.linear(seen, f"{sources}out_proj", dim, bias=True, hint="source_o"))
    normed = builder.layer_norm(x, f"{prefix}final_layer_norm", _EPS, hint="mlp_norm")
    up = builder.linear(normed, f"{prefix}fc1", spec.mlp_size, bias=True, hint="up")
    hidden = builder.act(up, spec.activation)
    return builder.add(x, builder.linear(hidden, f"{prefix}fc2", dim, bias=True, hint="down"))


def _give_heads(builder: Builder, x: Value, spec: _Spec, layer: int) -> None:
    """Give the caller of a step the numbers of the layer's alignment heads."""
    size = spec.heads.head_dim
    for at, head in spec.alignment_heads:
        if at == layer:
            builder.rows_out(builder.columns(x, head * size, size))


def _keys_and_values(
    builder: Builder, x: Value, spec: _Spec, prefix: str, hint: str
) -> tuple[Value, Value]:
    """K, which has no bias, and V."""
    dim = spec.heads.kv_dim
    k = builder.linear(x, f"{prefix}k_proj", dim, bias=False, hint=f"{hint}k")
    [v] = builder.linears(x, [Out(f"{hint}v", f"{prefix}v_proj", dim, True)], hint=f"{hint}v")
    return k, v


def _facts(reader: ConfigReader) -> ModelFacts:
    spec = _spec(reader)
    return ModelFacts(
        num_layers=spec.num_layers,
        num_heads=spec.heads.num_heads,
        num_kv_heads=spec.heads.num_kv_heads,
        head_dim=spec.heads.head_dim,
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        max_model_len=spec.num_sources + spec.num_positions,
        sliding_window=None,
        eos_token_ids=reader.token_ids("eos_token_id"),
        tie_word_embeddings=spec.is_tied,
        num_sources=spec.num_sources,
    )


def _names(reader: ConfigReader) -> NameMap:
    head = (rf"{_HEAD}\.weight",) if _spec(reader).is_tied else ()
    return NameMap(_ROOT, ("decoder.",), head, (f"{_HEAD}.",), has_other_parts=True)


WHISPER = ModelFamily(
    name="whisper",
    architectures=("WhisperForConditionalGeneration",),
    build=_build,
    facts=_facts,
    names=_names,
    models="Whisper, Distil-Whisper",
)

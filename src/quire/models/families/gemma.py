"""Gemma 1, 2 and 3 (text): norms with weight + 1, a scaled embedding, and from 2 on norms on the
outputs of each block and windows in most layers.

Gemma 2 bounds scores and logits by soft caps; Gemma 3 has norms on the heads of q and k instead,
and a rotary embedding of its own for the layers with a window.
"""

from __future__ import annotations

from quire.errors import UnsupportedModelError
from quire.models.base import ModelFacts, ModelFamily, NameMap
from quire.models.config_reader import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, ConfigReader
from quire.models.decoder import (
    DecoderNumbers,
    DecoderSpec,
    Rotaries,
    build_decoder,
    decoder_facts,
    decoder_names,
    read_activation,
    read_heads,
    read_num_layers,
    read_spec,
)
from quire.models.rope import rotary

_HEAD_DIM = 256
_MAX_CAP = 1e6


def _first(reader: ConfigReader) -> DecoderSpec:
    """transformers computes Gemma 1 with the tanh form of GELU, whatever `hidden_act` says."""
    attention_bias = reader.flag("attention_bias", False)
    return read_spec(
        reader,
        "gemma",
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        activation="gelu_tanh",
        default_head_dim=_HEAD_DIM,
        default_tie=True,
        numbers=DecoderNumbers(norm_offset=1.0, embed_scale=_embed_scale(reader)),
    )


def _second(reader: ConfigReader) -> DecoderSpec:
    return _with_windows(reader, "gemma2", pattern=2, caps=(50.0, 30.0))


def _third(reader: ConfigReader) -> DecoderSpec:
    if reader.flag("use_bidirectional_attention", False):
        raise UnsupportedModelError(f"{reader.where}: use_bidirectional_attention is not supported")
    pattern = reader.size("sliding_window_pattern", MAX_LAYERS, example=6, default=6)
    return _with_windows(reader, "gemma3", pattern, head_norms=True, rotaries=_rotaries(reader))


def _with_windows(
    reader: ConfigReader,
    name: str,
    pattern: int,
    *,
    caps: tuple[float | None, float | None] = (None, None),
    head_norms: bool = False,
    rotaries: Rotaries | None = None,
) -> DecoderSpec:
    """Gemma 2 and 3; `caps`: the defaults of the soft caps of scores and of logits."""
    attention_bias = reader.flag("attention_bias", False)
    query_dim = reader.number("query_pre_attn_scalar", 1.0, 1e6, example=256.0, default=256.0)
    return read_spec(
        reader,
        name,
        windows=_windows(reader, pattern),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        head_norms=head_norms,
        activation=read_activation(reader, "hidden_activation", "gelu_pytorch_tanh"),
        rotaries=rotaries,
        default_head_dim=_HEAD_DIM,
        default_tie=True,
        numbers=DecoderNumbers(
            norm_offset=1.0,
            output_norms=True,
            embed_scale=_embed_scale(reader),
            attention_scale=query_dim**-0.5,
            attention_softcap=_cap(reader, "attn_logit_softcapping", caps[0]),
            logits_softcap=_cap(reader, "final_logit_softcapping", caps[1]),
        ),
    )


def _embed_scale(reader: ConfigReader) -> float:
    return float(reader.size("hidden_size", MAX_HIDDEN, example=2048) ** 0.5)


def _cap(reader: ConfigReader, key: str, default: float | None) -> float | None:
    if reader.is_null(key) or (default is None and not reader.has(key)):
        return None
    return reader.number(key, 1.0 / _MAX_CAP, _MAX_CAP, example=50.0, default=default)


def _windows(reader: ConfigReader, pattern: int) -> tuple[int | None, ...]:
    """`layer_types`, or every layer but each `pattern`-th."""
    num_layers = read_num_layers(reader)
    window = reader.size("sliding_window", MAX_POSITIONS, example=4096, default=4096)
    kinds = {"sliding_attention": window, "full_attention": None}
    types = reader.texts("layer_types", num_layers)
    if types is None:
        return tuple(window if (i + 1) % pattern else None for i in range(num_layers))
    for kind in types:
        if kind not in kinds:
            raise UnsupportedModelError(
                f"{reader.where}: layer_types has {kind!r}; known are {', '.join(kinds)}"
            )
    return tuple(kinds[kind] for kind in types)


def _rotaries(reader: ConfigReader) -> Rotaries:
    """Two forms: `rope_parameters` by kind of layer; or `rope_theta` and `rope_scaling` for the
    layers without a window, and `rope_local_base_freq` for the others."""
    head_dim = read_heads(reader, _HEAD_DIM).head_dim
    local = reader.number("rope_local_base_freq", 1.0001, 1e12, example=1e4, default=1e4)
    kinds = reader.section("rope_parameters") or ConfigReader({}, reader.where)
    return Rotaries(
        full=rotary(reader, head_dim, 1e6, kinds.section("full_attention")),
        window=rotary(
            reader,
            head_dim,
            local,
            kinds.section("sliding_attention") or ConfigReader({"rope_theta": local}, reader.where),
        ),
    )


def _facts_of_third(reader: ConfigReader) -> ModelFacts:
    kinds = reader.section("rope_parameters") or ConfigReader({}, reader.where)
    return decoder_facts(_third(reader), reader, kinds.section("full_attention"))


def _names(reader: ConfigReader) -> NameMap:
    return decoder_names(reader, default_tie=True)


GEMMA = ModelFamily(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    build=lambda reader: build_decoder(_first(reader)),
    facts=lambda reader: decoder_facts(_first(reader), reader),
    names=_names,
)
GEMMA2 = ModelFamily(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    build=lambda reader: build_decoder(_second(reader)),
    facts=lambda reader: decoder_facts(_second(reader), reader),
    names=_names,
)
GEMMA3 = ModelFamily(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    build=lambda reader: build_decoder(_third(reader)),
    facts=_facts_of_third,
    names=_names,
)

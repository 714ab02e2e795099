"""Gemma 1, 2 and 3 (text): norms with weight + 1 and a scaled embedding; Gemma 2 and 3 also norm
the output of each block and have windows in most layers.

Gemma 2 applies soft caps to scores and logits. Gemma 3 norms the heads of q and k instead, and uses
a separate RoPE for layers with a window.
"""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import (
    pattern_windows,
    read_activation,
    read_cap,
    read_spec,
    rotaries_by_kind,
)
from quire.models.spec import DecoderSpec, LayerNames, Names, QkNorm
from quire.models.text_part import IMAGE_SPANS

_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}
_SANDWICH = Names(
    layer=LayerNames(
        attention_out_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_out_norm="post_feedforward_layernorm",
    )
)


def _first(reader: ConfigReader) -> DecoderSpec:
    """Read Gemma 1. Its first files name "gelu", but the models were trained with the tanh form."""
    named = read_activation(reader, "hidden_act", "gelu_pytorch_tanh")
    activation = "gelu_tanh" if named == "gelu" else named
    spec = read_spec(reader, activation=activation, biased="attention")
    return replace(
        spec, norm=replace(spec.norm, offset=1.0), embed_scale=float(spec.hidden_size**0.5)
    )


def _second(reader: ConfigReader) -> DecoderSpec:
    return _with_windows(reader, pattern_windows(reader, 2))


def _third(reader: ConfigReader) -> DecoderSpec:
    pattern = reader.size("sliding_window_pattern", MAX_LAYERS, example=6, default=6)
    windows = pattern_windows(reader, pattern)
    local = reader.number("rope_local_base_freq", 1.0001, 1e12, example=1e4, default=1e4)
    own = ConfigReader({"rope_theta": local}, reader.where)
    spec = _with_windows(reader, windows, local=own)
    spans = reader.flag(IMAGE_SPANS, False)
    return replace(spec, attention=replace(spec.attention, qk_norm=QkNorm(), spans=spans))


def _with_windows(
    reader: ConfigReader, windows: tuple[int | None, ...], local: ConfigReader | None = None
) -> DecoderSpec:
    """Read Gemma 2 and 3; `local` as in `rotaries_by_kind`."""
    query_dim = reader.number("query_pre_attn_scalar", 1.0, 1e6, example=256.0, default=256.0)
    spec = read_spec(
        reader,
        activation=read_activation(reader, "hidden_activation", "gelu_pytorch_tanh"),
        rotaries=rotaries_by_kind(reader, windows, local),
        biased="attention",
    )
    return replace(
        spec,
        norm=replace(spec.norm, offset=1.0),
        attention=replace(
            spec.attention,
            windows=windows,
            scale=query_dim**-0.5,
            softcap=read_cap(reader, "attn_logit_softcapping"),
        ),
        names=_SANDWICH,
        embed_scale=float(spec.hidden_size**0.5),
        logits_softcap=read_cap(reader, "final_logit_softcapping"),
    )


GEMMA = decoder_family(
    "gemma", ("GemmaForCausalLM",), _first, models="Gemma 1, CodeGemma", defaults=_DEFAULTS
)
GEMMA2 = decoder_family(
    "gemma2",
    ("Gemma2ForCausalLM",),
    _second,
    models="Gemma 2",
    defaults={**_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
)
GEMMA3 = decoder_family(
    "gemma3",
    ("Gemma3ForCausalLM",),
    _third,
    models="Gemma 3 270M to 27B; wrapped too (Gemma3ForConditionalGeneration)",
    defaults={**_DEFAULTS, "rope_theta": 1e6},
)

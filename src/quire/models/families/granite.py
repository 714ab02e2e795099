"""Granite 3: Llama with factors on the embedding, the residual stream, q.k and the logits."""

from __future__ import annotations

from quire.models.base import ModelFamily
from quire.models.config_reader import ConfigReader
from quire.models.decoder import (
    DecoderNumbers,
    DecoderSpec,
    build_decoder,
    decoder_facts,
    decoder_names,
    read_spec,
    refuse_layer_types,
)

_LARGEST = 1e6
"""Largest value of a factor."""


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    attention_bias = reader.flag("attention_bias", False)
    return read_spec(
        reader,
        "granite",
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=reader.flag("mlp_bias", False),
        numbers=DecoderNumbers(
            embed_scale=_factor(reader, "embedding_multiplier"),
            residual_scale=_factor(reader, "residual_multiplier"),
            attention_scale=_factor(reader, "attention_multiplier"),
            logits_scale=1.0 / _factor(reader, "logits_scaling"),
        ),
    )


def _factor(reader: ConfigReader, key: str) -> float:
    return reader.number(key, 1.0 / _LARGEST, _LARGEST, example=1.0, default=1.0)


FAMILY = ModelFamily(
    name="granite",
    architectures=("GraniteForCausalLM",),
    build=lambda reader: build_decoder(_spec(reader)),
    facts=lambda reader: decoder_facts(_spec(reader), reader),
    names=decoder_names,
)

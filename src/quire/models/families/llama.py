"""Llama 1, 2 and 3, and the many models published as LlamaForCausalLM."""

from __future__ import annotations

from quire.models.base import ModelFamily
from quire.models.config_reader import ConfigReader
from quire.models.decoder import (
    DecoderSpec,
    build_decoder,
    decoder_facts,
    decoder_names,
    read_spec,
    refuse_layer_types,
)


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    attention_bias = reader.flag("attention_bias", False)
    return read_spec(
        reader,
        "llama",
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )


FAMILY = ModelFamily(
    name="llama",
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
    build=lambda reader: build_decoder(_spec(reader)),
    facts=lambda reader: decoder_facts(_spec(reader), reader),
    names=decoder_names,
)

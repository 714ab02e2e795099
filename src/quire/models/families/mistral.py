"""Mistral: Llama with one sliding window for all layers."""

from __future__ import annotations

from quire.models.base import ModelFamily
from quire.models.config_reader import MAX_POSITIONS, ConfigReader
from quire.models.decoder import (
    DecoderSpec,
    build_decoder,
    decoder_facts,
    decoder_names,
    read_num_layers,
    read_spec,
    refuse_layer_types,
)


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    window = None
    if reader.has("sliding_window"):
        window = reader.size("sliding_window", MAX_POSITIONS, example=4096)
    return read_spec(reader, "mistral", windows=(window,) * read_num_layers(reader))


FAMILY = ModelFamily(
    name="mistral",
    architectures=("MistralForCausalLM",),
    build=lambda reader: build_decoder(_spec(reader)),
    facts=lambda reader: decoder_facts(_spec(reader), reader),
    names=decoder_names,
)

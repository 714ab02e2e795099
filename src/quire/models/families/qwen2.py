"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and optional sliding windows."""

from __future__ import annotations

from quire.models.base import ModelFamily
from quire.models.config_reader import ConfigReader
from quire.models.decoder import (
    DecoderSpec,
    build_decoder,
    decoder_facts,
    decoder_names,
    read_spec,
    read_windows,
)


def _spec(reader: ConfigReader) -> DecoderSpec:
    return read_spec(reader, "qwen2", windows=read_windows(reader), qkv_bias=True)


FAMILY = ModelFamily(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    build=lambda reader: build_decoder(_spec(reader)),
    facts=lambda reader: decoder_facts(_spec(reader), reader),
    names=decoder_names,
)

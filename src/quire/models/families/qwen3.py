"""Qwen3: RMS norms on each head of q and k, a head dim of its own, optional sliding windows."""

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
    attention_bias = reader.flag("attention_bias", False)
    return read_spec(
        reader,
        "qwen3",
        windows=read_windows(reader),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        head_norms=True,
        default_head_dim=128,
    )


FAMILY = ModelFamily(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    build=lambda reader: build_decoder(_spec(reader)),
    facts=lambda reader: decoder_facts(_spec(reader), reader),
    names=decoder_names,
)

"""Mistral: Llama with sliding windows. Ministral 3 scales q by its position."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_POSITIONS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import every_window, pattern_windows, read_spec, refuse_layer_types
from quire.models.spec import DecoderSpec, PositionScaling


def _mistral(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    spec = read_spec(reader, biased="none")
    return replace(spec, attention=replace(spec.attention, windows=every_window(reader)))


def _ministral(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    windows = pattern_windows(reader, 2) if reader.has("layer_types") else every_window(reader)
    return replace(spec, attention=replace(spec.attention, windows=windows))


def _ministral3(reader: ConfigReader) -> DecoderSpec:
    spec = _mistral(reader)
    sections = (reader.section(name) for name in ("rope_parameters", "rope_scaling"))
    rope = next((one for one in sections if one and one.has("llama_4_scaling_beta")), None)
    if rope is None:
        return spec
    scaling = PositionScaling(
        beta=rope.number("llama_4_scaling_beta", 0.0, 100.0, example=0.1),
        period=rope.size("original_max_position_embeddings", MAX_POSITIONS, example=16384),
    )
    return replace(spec, attention=replace(spec.attention, q_scaling=scaling))


MISTRAL = decoder_family(
    "mistral",
    ("MistralForCausalLM",),
    _mistral,
    models="Mistral 7B, Nemo, Small 3; Zephyr; wrapped too (Mistral3ForConditionalGeneration)",
    defaults={"sliding_window": 4096},
)
MINISTRAL = decoder_family(
    "ministral",
    ("MinistralForCausalLM",),
    _ministral,
    models="Ministral 8B",
    defaults={"sliding_window": 4096, "num_key_value_heads": 8},
)
MINISTRAL3 = decoder_family(
    "ministral3",
    ("Ministral3ForCausalLM",),
    _ministral3,
    models="Ministral 3, Devstral Small 2; wrapped too (Mistral3ForConditionalGeneration)",
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
)

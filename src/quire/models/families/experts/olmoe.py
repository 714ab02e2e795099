"""OLMoE and FlexOlmo: experts in every layer, and RMS norms over the whole width of q and k."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.families.experts.qwen_moe import qwen_moe
from quire.models.families.olmo import POST_NORMS
from quire.models.reading import read_cap, read_spec, refuse_layer_types
from quire.models.spec import DecoderSpec, QkNorm


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    spec = read_spec(reader)
    clip = read_cap(reader, "clip_qkv")
    return replace(
        spec,
        attention=replace(spec.attention, qk_norm=QkNorm("row"), clip_qkv=clip),
        experts=(qwen_moe(reader, num_experts=64, top_k=8),) * spec.num_layers,
    )


def _flex(reader: ConfigReader) -> DecoderSpec:
    """Read FlexOlmo. Like OLMo 2, it norms only the outputs of attention and experts."""
    refuse_layer_types(reader)
    spec = read_spec(reader)
    return replace(
        spec,
        attention=replace(spec.attention, qk_norm=QkNorm("row")),
        names=POST_NORMS,
        experts=(qwen_moe(reader, num_experts=7, top_k=5),) * spec.num_layers,
    )


_KEYS = {"moe_intermediate_size": "intermediate_size"}

FAMILY = decoder_family(
    "olmoe",
    ("OlmoeForCausalLM",),
    _spec,
    models="OLMoE 1B-7B",
    keys=_KEYS,
    defaults={"rms_norm_eps": 1e-5},
)
FLEX_OLMO = decoder_family(
    "flex_olmo",
    ("FlexOlmoForCausalLM",),
    _flex,
    models="FlexOlmo 7x7B",
    keys=_KEYS,
    defaults={"rope_theta": 5e5},
)

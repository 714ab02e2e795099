"""OLMoE and FlexOlmo: experts in every layer, and RMS norms over the whole width of q and k."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import ExpertNames, MoeSpec, read_num_experts, read_top_k, read_width
from quire.models.families.olmo import POST_NORMS
from quire.models.reading import read_activation, read_cap, read_spec, refuse_layer_types
from quire.models.spec import DecoderSpec, QkNorm
from quire.program import Routing


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    spec = read_spec(reader)
    clip = read_cap(reader, "clip_qkv")
    return replace(
        spec,
        attention=replace(spec.attention, qk_norm=QkNorm("row"), clip_qkv=clip),
        experts=(_experts(reader, 64, 8),) * spec.num_layers,
    )


def _flex(reader: ConfigReader) -> DecoderSpec:
    """Read FlexOlmo. Like OLMo 2, it norms only the outputs of attention and experts."""
    refuse_layer_types(reader)
    spec = read_spec(reader)
    return replace(
        spec,
        attention=replace(spec.attention, qk_norm=QkNorm("row")),
        names=POST_NORMS,
        experts=(_experts(reader, 7, 5),) * spec.num_layers,
    )


def _experts(reader: ConfigReader, num_experts: int, top_k: int) -> MoeSpec:
    """Read the experts. The arguments are defaults for keys that config.json omits."""
    num_experts = read_num_experts(reader, default=num_experts)
    return MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        read_activation(reader, "hidden_act"),
        Routing(
            read_top_k(reader, num_experts, default=top_k),
            normalise=reader.flag("norm_topk_prob", False),
        ),
        ExpertNames(),
    )


FAMILY = decoder_family(
    "olmoe",
    ("OlmoeForCausalLM",),
    _spec,
    models="OLMoE 1B-7B",
    defaults={"rms_norm_eps": 1e-5},
)
FLEX_OLMO = decoder_family(
    "flex_olmo",
    ("FlexOlmoForCausalLM",),
    _flex,
    models="FlexOlmo 7x7B",
    defaults={"rope_theta": 5e5},
)

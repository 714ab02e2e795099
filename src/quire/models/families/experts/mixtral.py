"""Mixtral: Mistral with eight experts instead of the MLP, of which a token uses two."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import ExpertNames, MoeSpec, read_num_experts, read_top_k, read_width
from quire.models.reading import every_window, read_activation, read_spec, refuse_layer_types
from quire.models.spec import DecoderSpec
from quire.program import Routing

MIXTRAL_NAMES = ExpertNames(
    prefix="block_sparse_moe.experts", gate="w1.weight", up="w3.weight", down="w2.weight"
)


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    spec = read_spec(reader, biased="none")
    attention = replace(spec.attention, windows=every_window(reader))
    return replace(spec, attention=attention, experts=(_experts(reader),) * spec.num_layers)


def _experts(reader: ConfigReader) -> MoeSpec:
    num_experts = read_num_experts(reader, default=8)
    return MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        read_activation(reader, "hidden_act"),
        Routing(read_top_k(reader, num_experts, default=2)),
        MIXTRAL_NAMES,
        router="block_sparse_moe.gate",
    )


FAMILY = decoder_family(
    "mixtral",
    ("MixtralForCausalLM",),
    _spec,
    models="Mixtral 8x7B and 8x22B",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8},
)

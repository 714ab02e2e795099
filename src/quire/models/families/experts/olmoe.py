"""OLMoE: experts in every layer, and RMS norms over the whole width of q and k."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import ExpertNames, MoeSpec, read_num_experts, read_top_k, read_width
from quire.models.reading import read_activation, read_spec, refuse_layer_types
from quire.models.spec import DecoderSpec, QkNorm
from quire.program import Routing


def _spec(reader: ConfigReader) -> DecoderSpec:
    refuse_layer_types(reader)
    spec = read_spec(reader, "olmoe")
    if reader.has("clip_qkv"):
        raise UnsupportedModelError(f"{reader.where}: clip_qkv is not supported; null is")
    return replace(
        spec,
        attention=replace(spec.attention, qk_norm=QkNorm("row")),
        experts=(_experts(reader),) * spec.num_layers,
    )


def _experts(reader: ConfigReader) -> MoeSpec:
    num_experts = read_num_experts(reader, default=64)
    return MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        read_activation(reader, "hidden_act"),
        Routing(
            read_top_k(reader, num_experts, default=8),
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

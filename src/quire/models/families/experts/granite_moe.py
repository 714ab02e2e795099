"""Granite 3 with experts, whose tensors hold all experts of a layer."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_FEED_FORWARD, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import (
    ExpertNames,
    MoeSpec,
    SharedExpert,
    read_num_experts,
    read_top_k,
    read_width,
)
from quire.models.families.granite import granite_spec
from quire.models.reading import read_activation
from quire.models.spec import DecoderSpec
from quire.program import Routing


def _spec(reader: ConfigReader) -> DecoderSpec:
    spec = granite_spec(reader, "granitemoe")
    return replace(spec, experts=(_experts(reader),) * spec.num_layers)


def _experts(reader: ConfigReader) -> MoeSpec:
    """Softmax of the chosen logits: that of all, made to add up to 1."""
    num_experts = read_num_experts(reader, default=8)
    shared = None
    if reader.count("shared_intermediate_size", MAX_FEED_FORWARD, default=0):
        width = read_width(reader, "shared_intermediate_size")
        shared = SharedExpert(width, "shared_mlp", gate_up="input_linear", down="output_linear")
    return MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        read_activation(reader, "hidden_act"),
        Routing(read_top_k(reader, num_experts, default=2)),
        ExpertNames(
            "fused", "block_sparse_moe", gate_up="input_linear.weight", down="output_linear.weight"
        ),
        router="block_sparse_moe.router.layer",
        shared=shared,
    )


FAMILY = decoder_family(
    "granitemoe",
    ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    _spec,
    models="Granite 3 with experts",
)

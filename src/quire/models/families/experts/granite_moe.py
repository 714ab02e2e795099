"""Granite 3 with experts, where a tensor has all experts of a layer, and Granite 4."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_FEED_FORWARD, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import (
    MAX_EXPERTS,
    ExpertNames,
    MoeSpec,
    SharedExpert,
    read_num_experts,
    read_top_k,
    read_width,
)
from quire.models.families.granite import granite_spec, with_factors
from quire.models.families.recurrent_fields import read_mamba2, read_recurrent, with_mixers
from quire.models.reading import read_activation, read_num_layers, read_spec
from quire.models.spec import DecoderSpec, LayerNames, Names
from quire.program import Routing


def _spec(reader: ConfigReader) -> DecoderSpec:
    spec = granite_spec(reader)
    return replace(spec, experts=(_experts(reader),) * spec.num_layers)


def _fourth(reader: ConfigReader) -> DecoderSpec:
    """Read Granite 4, of whose layers some or all have attention, and the others Mamba 2. Without
    experts, the shared MLP is the only MLP. RoPE is optional."""
    num_layers, is_recurrent = read_num_layers(reader), read_recurrent(reader)
    rotates = reader.text("position_embedding_type") == "rope"
    names, size = LayerNames(gate_up="shared_mlp.input_linear", down="shared_mlp.output_linear"), 0
    if has_experts := reader.count("num_local_experts", MAX_EXPERTS, default=8) > 0:
        names, size = LayerNames(), read_width(reader, "intermediate_size")
    spec = read_spec(
        reader,
        rotaries=None if rotates else (None,) * num_layers,
        mlp_size=size or read_width(reader, "shared_intermediate_size", default=1024),
        biased="attention",
    )
    spec = replace(
        with_factors(reader, spec),
        mlp=replace(spec.mlp, fused=True),
        names=Names(layer=names),
        experts=(_experts(reader),) * num_layers if has_experts else (),
    )
    if not any(is_recurrent):
        return spec
    return with_mixers(spec, read_mamba2(reader, spec.norm.eps), is_recurrent)


def _experts(reader: ConfigReader) -> MoeSpec:
    """Read the experts. A softmax over the chosen logits equals the normalised softmax over all."""
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
GRANITE4 = decoder_family(
    "granite4",
    ("GraniteMoeHybridForCausalLM",),
    _fourth,
    models="Granite 4: 350M, 1B, Micro, and -H models with Mamba 2",
    keys={"layer_types": "layers_block_type"},
)

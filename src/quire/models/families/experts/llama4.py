"""Llama 4 (text): some layers attend within chunks of positions and others to all positions without
RoPE; experts read x times the router's sigmoid."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_LAYERS, MAX_POSITIONS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import (
    ExpertNames,
    MoeSpec,
    SharedExpert,
    read_num_experts,
    read_top_k,
    read_width,
)
from quire.models.reading import (
    read_activation,
    read_heads,
    read_layer_types,
    read_num_layers,
    read_spec,
)
from quire.models.rope import rotary
from quire.models.spec import AttentionSpec, DecoderSpec, LayerNames, Names, PositionScaling, QkNorm
from quire.program import Routing

_NAMES = LayerNames(
    gate="feed_forward.gate_proj", up="feed_forward.up_proj", down="feed_forward.down_proj"
)


def _spec(reader: ConfigReader) -> DecoderSpec:
    """Read the spec. `no_rope_layers` has 1 for a layer with RoPE and 0 for one without."""
    num_layers = read_num_layers(reader)
    interval = reader.size("no_rope_layer_interval", MAX_LAYERS, example=4, default=4)
    rotates = None
    if reader.indices("no_rope_layers", 1):
        rotates = reader.numbers("no_rope_layers", num_layers, 0, 1, example=1)
    if rotates is None:
        rotates = [float((layer + 1) % interval != 0) for layer in range(num_layers)]
    rotation = rotary(reader, read_heads(reader).head_dim, interleaved=True)
    spec = read_spec(
        reader,
        rotaries=[rotation if rotated else None for rotated in rotates],
        mlp_size=reader.size("intermediate_size_mlp", MAX_FEED_FORWARD, example=16384),
        biased="attention",
    )
    return replace(
        spec,
        attention=_attention(reader, spec.attention),
        names=Names(layer=_NAMES),
        experts=_experts(reader, num_layers),
    )


def _attention(reader: ConfigReader, attention: AttentionSpec) -> AttentionSpec:
    types = read_layer_types(reader, "chunked_attention")
    if types is None:
        types = ["chunked_attention" if one else "full_attention" for one in attention.rotaries]
    chunk = reader.size("attention_chunk_size", MAX_POSITIONS, example=8192, default=8192)
    has_norms = reader.flag("use_qk_norm", True)
    scaling = PositionScaling(
        beta=reader.number("attn_scale", 0.0, 100.0, example=0.1, default=0.1),
        period=reader.size("floor_scale", MAX_POSITIONS, example=8192, default=8192),
        shift=1,
        unrotated_only=True,
    )
    return replace(
        attention,
        windows=tuple(chunk if kind == "chunked_attention" else None for kind in types),
        is_chunked=True,
        qk_norm=QkNorm(weights="none", after_rope=True, rotated_only=True) if has_norms else None,
        q_scaling=scaling if reader.flag("attn_temperature_tuning", True) else None,
    )


def _experts(reader: ConfigReader, num_layers: int) -> tuple[MoeSpec | None, ...]:
    num_experts = read_num_experts(reader, default=16)
    width = read_width(reader, "intermediate_size")
    # Matrices of GGUF files are not transposed.
    layout: Literal["fused", "transposed"] = "fused"
    if reader.flag("transposed_weights", True):
        layout = "transposed"
    moe = MoeSpec(
        num_experts,
        width,
        read_activation(reader, "hidden_act"),
        Routing(read_top_k(reader, num_experts, default=1), "sigmoid", normalise=False),
        ExpertNames(layout, "feed_forward.experts", down="down_proj"),
        router="feed_forward.router",
        weighs_inputs=True,
        shared=SharedExpert(width, "feed_forward.shared_expert"),
    )
    step = reader.size("interleave_moe_layer_step", MAX_LAYERS, example=1, default=1)
    sparse = set(range(step - 1, num_layers, step))
    if reader.has("moe_layers"):
        sparse = set(reader.indices("moe_layers", MAX_LAYERS))
    return tuple(moe if layer in sparse else None for layer in range(num_layers))


FAMILY = decoder_family(
    "llama4",
    ("Llama4ForCausalLM",),
    _spec,
    models="the texts of Llama 4 Scout and Maverick",
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "intermediate_size_mlp": 16384,
    },
)

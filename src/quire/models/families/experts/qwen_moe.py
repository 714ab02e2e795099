"""Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 with experts, the former also with a shared one. Mellum
2 is Qwen3-MoE with windows in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from quire.models.config_reader import MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import (
    ExpertNames,
    MoeSpec,
    SharedExpert,
    in_sparse_layers,
    read_num_experts,
    read_top_k,
    read_width,
)
from quire.models.reading import (
    pattern_windows,
    read_activation,
    read_num_layers,
    read_spec,
    read_window,
    rotaries_by_kind,
)
from quire.models.spec import DecoderSpec, QkNorm
from quire.models.text_part import DEEPSTACK, TRANSPOSED
from quire.program import Routing


def _second(reader: ConfigReader) -> DecoderSpec:
    moe = qwen_moe(reader, num_experts=60, top_k=4, width=1408, shared_width=5632)
    spec = read_spec(reader, biased="none")
    bias = reader.flag("qkv_bias", True)
    return replace(
        spec,
        attention=replace(spec.attention, windows=_windows(reader), qkv_bias=bias),
        experts=in_sparse_layers(reader, moe, spec.num_layers),
    )


def _third(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, biased="attention")
    windows = (_window(reader),) * spec.num_layers
    moe = qwen_moe(reader, num_experts=128, top_k=8, width=768)
    return replace(
        spec,
        attention=replace(spec.attention, windows=windows, qk_norm=QkNorm()),
        experts=in_sparse_layers(reader, moe, spec.num_layers),
        num_deepstack=reader.count(DEEPSTACK, spec.num_layers, default=0),
    )


def _third_of_images(reader: ConfigReader) -> DecoderSpec:
    """The text of Qwen3-VL: the checkpoints have all experts of a layer in one tensor, and the
    weights of the chosen ones always add up to 1. Published checkpoints have transposed matrices,
    those that transformers 5 saves have not."""
    layout: Literal["fused", "transposed"] = "fused"
    if reader.flag(TRANSPOSED, True):
        layout = "transposed"
    names = ExpertNames(layout, down="down_proj")
    spec = _third(reader)
    layers = tuple(
        moe and replace(moe, tensors=names, routing=replace(moe.routing, normalise=True))
        for moe in spec.experts
    )
    return replace(spec, experts=layers)


def _mellum(reader: ConfigReader) -> DecoderSpec:
    windows = pattern_windows(reader, 1)
    spec = read_spec(reader, rotaries=rotaries_by_kind(reader, windows), biased="attention")
    moe = qwen_moe(reader, num_experts=64, top_k=8, width=896)
    return replace(
        spec,
        attention=replace(spec.attention, windows=windows, qk_norm=QkNorm()),
        experts=in_sparse_layers(reader, moe, spec.num_layers),
    )


def _window(reader: ConfigReader) -> int | None:
    return read_window(reader, 4096) if reader.flag("use_sliding_window", False) else None


def _windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """Return the windows from `layer_types`, or in every second layer of the first
    `max_window_layers`."""
    num_layers = read_num_layers(reader)
    if reader.has("layer_types"):
        return pattern_windows(reader, 2)
    window = _window(reader)
    last = reader.count("max_window_layers", MAX_LAYERS, default=28)
    return tuple(window if layer % 2 == 0 and layer < last else None for layer in range(num_layers))


def qwen_moe(
    reader: ConfigReader,
    *,
    num_experts: int,
    top_k: int,
    width: int | None = None,
    shared_width: int | None = None,
    normalise: bool = False,
) -> MoeSpec:
    """Read the experts. The arguments are defaults for keys that config.json omits. If `width` is
    None, config.json must have the key. If `shared_width` is None, the model has no shared
    expert."""
    shared = None
    if shared_width is not None:
        size = read_width(reader, "shared_expert_intermediate_size", default=shared_width)
        shared = SharedExpert(size, "mlp.shared_expert", gate="mlp.shared_expert_gate")
    num_experts = read_num_experts(reader, default=num_experts)
    return MoeSpec(
        num_experts,
        read_width(reader, "moe_intermediate_size", default=width),
        read_activation(reader, "hidden_act"),
        Routing(
            read_top_k(reader, num_experts, default=top_k),
            normalise=reader.flag("norm_topk_prob", normalise),
        ),
        ExpertNames(),
        shared=shared,
    )


QWEN2_MOE = decoder_family(
    "qwen2_moe", ("Qwen2MoeForCausalLM",), _second, models="Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B"
)
QWEN3_MOE = decoder_family(
    "qwen3_moe",
    ("Qwen3MoeForCausalLM",),
    _third,
    models="Qwen3-30B-A3B and 235B-A22B, Qwen3-Coder with experts",
)
QWEN3_VL_MOE = decoder_family(
    "qwen3_vl_moe",
    ("Qwen3VLMoeForCausalLM",),
    _third_of_images,
    models="the texts of Qwen3-VL-30B-A3B and 235B-A22B",
)
MELLUM = decoder_family(
    "mellum",
    ("MellumForCausalLM",),
    _mellum,
    models="Mellum 2 12B-A2.5B",
    defaults={
        "head_dim": 128,
        "num_key_value_heads": 4,
        "sliding_window": 1024,
        "norm_topk_prob": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
)

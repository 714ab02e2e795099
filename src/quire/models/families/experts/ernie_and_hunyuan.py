"""ERNIE 4.5 and Hunyuan: the attention of the dense families, softmax routers, and a shared MLP
that every token uses."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_LAYERS, ConfigReader
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
from quire.models.families.llama import ernie_spec, hunyuan_spec
from quire.models.reading import read_activation
from quire.models.spec import DecoderSpec
from quire.program import Routing


def _ernie(reader: ConfigReader) -> DecoderSpec:
    spec = ernie_spec(reader)
    bias = spec.mlp.bias
    num_experts = read_num_experts(reader, "moe_num_experts", default=64)
    width = read_width(reader, "moe_intermediate_size", default=1536)
    shared = None
    if count := reader.count("moe_num_shared_experts", MAX_EXPERTS, default=2):
        shared = SharedExpert(count * width, "mlp.shared_experts", bias=bias)
    routing = Routing(
        read_top_k(reader, num_experts, "moe_k", default=6),
        floor=reader.number("moe_norm_min", 0.0, 1.0, example=1e-12, default=1e-12),
    )
    moe = MoeSpec(
        num_experts,
        width,
        read_activation(reader, "hidden_act"),
        routing,
        ExpertNames(),
        choice_bias="mlp.moe_statics.e_score_correction_bias",
        choice_bias_is_row=True,
        shared=shared,
    )
    return replace(spec, experts=_ernie_layers(reader, moe, spec.num_layers), head_bias=bias)


def _ernie_layers(
    reader: ConfigReader, moe: MoeSpec, num_layers: int
) -> tuple[MoeSpec | None, ...]:
    """Return the experts of every `moe_layer_interval`-th layer from `moe_layer_start_index` to
    `moe_layer_end_index`."""
    first = reader.count("moe_layer_start_index", MAX_LAYERS, default=1)
    last = num_layers - 1
    if reader.has("moe_layer_end_index"):
        end = reader.number("moe_layer_end_index", -1, MAX_LAYERS, example=last)
        last = last if end == -1 else int(end)
    step = reader.size("moe_layer_interval", MAX_LAYERS, example=1, default=1)
    return tuple(
        moe if first <= layer <= last and (layer + 1) % step == 0 else None
        for layer in range(num_layers)
    )


def _hunyuan(reader: ConfigReader) -> DecoderSpec:
    """Read the spec. Numbers of experts, widths and so on may be lists with one value per layer."""
    spec = hunyuan_spec(reader)
    num_layers = spec.num_layers
    reader.count("moe_layer_num_skipped", 0, default=0)
    key = "num_local_experts" if reader.has("num_local_experts") else "num_experts"
    counts = reader.sizes(key, num_layers, MAX_EXPERTS, example=64, default=1)
    chosen = reader.sizes("moe_topk", num_layers, MAX_EXPERTS, example=8, default=1)
    shares = reader.sizes("num_shared_expert", num_layers, MAX_EXPERTS, example=1, default=1)
    size = spec.mlp.size
    wide = "moe_intermediate_size"
    widths = reader.sizes(wide, num_layers, MAX_FEED_FORWARD, example=size, default=size)

    def layer(num_experts: int, top_k: int, share: int, width: int) -> MoeSpec:
        if top_k > num_experts:
            raise reader.error("moe_topk", top_k, f"at most the {num_experts} experts", num_experts)
        return MoeSpec(
            num_experts,
            width,
            read_activation(reader, "hidden_act"),
            Routing(top_k),
            ExpertNames(),
            router="mlp.gate.wg",
            shared=SharedExpert(share * size, "mlp.shared_mlp"),
        )

    layers = zip(counts, chosen, shares, widths, strict=True)
    return replace(spec, experts=tuple(layer(*numbers) for numbers in layers))


ERNIE_MOE = decoder_family(
    "ernie4_5_moe",
    ("Ernie4_5_MoeForCausalLM",),
    _ernie,
    models="ERNIE 4.5 21B-A3B and 300B-A47B",
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
    },
)
HUNYUAN_MOE = decoder_family(
    "hunyuan_moe",
    ("HunYuanMoEV1ForCausalLM",),
    _hunyuan,
    models="Hunyuan A13B",
    defaults={"rms_norm_eps": 1e-5},
)

"""PhiMoE: two experts per token, chosen by sparsemixer; layer norms, and biases in attention."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import MoeSpec, read_num_experts, read_top_k, read_width
from quire.models.families.experts.mixtral import MIXTRAL_NAMES
from quire.models.reading import every_window, read_activation, read_spec
from quire.models.spec import DecoderSpec, NormSpec
from quire.program import Routing


def _spec(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    num_experts = read_num_experts(reader, default=16)
    if (top_k := read_top_k(reader, num_experts, default=2)) != 2:
        raise reader.error("num_experts_per_tok", top_k, "2 for the sparsemixer router", 2)
    moe = MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        read_activation(reader, "hidden_act"),
        Routing(
            2,
            "sparsemixer",
            jitter=reader.number("router_jitter_noise", 0.0, 1e3, example=0.01, default=0.01),
        ),
        MIXTRAL_NAMES,
        router="block_sparse_moe.gate",
    )
    return replace(
        spec,
        norm=NormSpec(spec.norm.eps, "layer", has_bias=True),
        attention=replace(spec.attention, windows=every_window(reader)),
        experts=(moe,) * spec.num_layers,
        head_bias=reader.flag("lm_head_bias", False),
    )


FAMILY = decoder_family(
    "phimoe",
    ("PhiMoEForCausalLM", "PhimoeForCausalLM"),
    _spec,
    models="Phi 3.5 with experts, Phi-mini-MoE and Phi-tiny-MoE",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8},
)

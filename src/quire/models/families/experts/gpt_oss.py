"""gpt-oss: experts with biases in every layer, attention sinks, and a window in every second layer.

Its published files store the experts in MXFP4, see `weights.quantised.experts`.
"""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import ExpertNames, MoeSpec, read_num_experts, read_top_k, read_width
from quire.models.reading import pattern_windows, read_spec
from quire.models.spec import DecoderSpec
from quire.program import Routing


def _spec(reader: ConfigReader) -> DecoderSpec:
    for key, value in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if reader.number(key, 0.0, 1e6, example=value, default=value) != value:
            raise UnsupportedModelError(f"{reader.where}: {key} must be {value}, as in gpt-oss")
    spec = read_spec(reader)
    attention = replace(spec.attention, windows=pattern_windows(reader, 2), has_sinks=True)
    return replace(spec, attention=attention, experts=(_experts(reader),) * spec.num_layers)


def _experts(reader: ConfigReader) -> MoeSpec:
    """Read the experts. A softmax over the chosen logits equals the normalised softmax over all."""
    num_experts = read_num_experts(reader, default=128)
    return MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        "swiglu_oai",
        Routing(read_top_k(reader, num_experts, default=4)),
        ExpertNames(has_biases=True),
        router="mlp.router",
        router_bias=True,
    )


FAMILY = decoder_family(
    "gpt_oss",
    ("GptOssForCausalLM",),
    _spec,
    models="gpt-oss 20B and 120B",
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "attention_bias": True,
        "sliding_window": 128,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
)

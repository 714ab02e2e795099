"""Families with DeepSeek-V3's router and plain attention: GLM-4.5, Solar Open, dots.llm1, K-EXAONE,
MiniMax M2.
"""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import MoeSpec, read_num_experts, read_top_k, read_width
from quire.models.families.experts.deepseek import sigmoid_experts
from quire.models.families.experts.mixtral import MIXTRAL_NAMES
from quire.models.families.olmo import exaone_spec
from quire.models.reading import (
    pattern_windows,
    read_activation,
    read_heads,
    read_spec,
    read_window,
)
from quire.models.spec import DecoderSpec, QkNorm
from quire.program import Routing


def _glm4_moe(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, biased="attention")
    qk_norm = QkNorm() if reader.flag("use_qk_norm", False) else None
    return replace(
        spec,
        attention=replace(spec.attention, out_bias=False, qk_norm=qk_norm),
        experts=sigmoid_experts(reader, spec.num_layers, normalise=True),
    )


def _solar(reader: ConfigReader) -> DecoderSpec:
    width = read_width(reader, "moe_intermediate_size")
    spec = read_spec(reader, mlp_size=width)
    return replace(
        spec,
        attention=replace(spec.attention, out_bias=False),
        experts=sigmoid_experts(reader, spec.num_layers, normalise=True),
    )


def _exaone(reader: ConfigReader) -> DecoderSpec:
    spec = exaone_spec(reader)
    layers = sigmoid_experts(reader, spec.num_layers, normalise=True)
    bias = "mlp.e_score_correction_bias"
    return replace(spec, experts=tuple(moe and replace(moe, choice_bias=bias) for moe in layers))


def _dots1(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, biased="attention")
    windows: tuple[int | None, ...] = (None,) * spec.num_layers
    if reader.has("layer_types"):
        windows = pattern_windows(reader, 1)
    elif reader.has("sliding_window"):
        first = reader.count("max_window_layers", MAX_LAYERS, default=62)
        window = read_window(reader, 4096)
        windows = tuple(window if n >= first else None for n in range(spec.num_layers))
    return replace(
        spec,
        attention=replace(spec.attention, windows=windows, qk_norm=QkNorm()),
        experts=sigmoid_experts(reader, spec.num_layers, normalise=False),
    )


def _minimax_m2(reader: ConfigReader) -> DecoderSpec:
    """Read the spec. RoPE rotates `rotary_dim` numbers of each head; norms span the whole width of
    q and k."""
    if reader.has("rotary_dim"):
        head_dim = read_heads(reader).head_dim
        size = reader.size("rotary_dim", head_dim, example=64)
        reader = reader.translated({}, {"partial_rotary_factor": size / head_dim})
    spec = read_spec(reader, biased="none")
    num_experts = read_num_experts(reader, default=256)
    moe = MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        read_activation(reader, "hidden_act"),
        Routing(read_top_k(reader, num_experts, default=8), "sigmoid"),
        MIXTRAL_NAMES,
        router="block_sparse_moe.gate",
        choice_bias="block_sparse_moe.e_score_correction_bias",
    )
    attention = replace(spec.attention, qk_norm=QkNorm("row"))
    return replace(spec, attention=attention, experts=(moe,) * spec.num_layers)


GLM4_MOE = decoder_family(
    "glm4_moe",
    ("Glm4MoeForCausalLM",),
    _glm4_moe,
    models="GLM-4.5, 4.5-Air, 4.6 and 4.7",
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
)
SOLAR_OPEN = decoder_family(
    "solar_open",
    ("SolarOpenForCausalLM",),
    _solar,
    models="Solar Open 100B",
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1280,
    },
)
EXAONE_MOE = decoder_family(
    "exaone_moe",
    ("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    _exaone,
    models="K-EXAONE 236B-A23B",
    keys={"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
    defaults={
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.5,
    },
)
DOTS1 = decoder_family("dots1", ("Dots1ForCausalLM",), _dots1, models="dots.llm1")
MINIMAX_M2 = decoder_family(
    "minimax_m2",
    ("MiniMaxM2ForCausalLM",),
    _minimax_m2,
    models="MiniMax M2",
    defaults={"rope_theta": 5e6, "head_dim": 128, "num_key_value_heads": 8},
)

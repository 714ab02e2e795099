"""LFM2: gated short convolutions in most layers, attention in the others; some with experts."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import MoeSpec, read_num_experts, read_top_k, read_width
from quire.models.families.experts.mixtral import MIXTRAL_NAMES
from quire.models.families.recurrent_fields import read_conv, read_recurrent, with_mixers
from quire.models.mixers import ShortConvMixer
from quire.models.reading import read_factor, read_mlp_size, read_num_layers, read_spec
from quire.models.spec import DecoderSpec, LayerNames, Names, QkNorm
from quire.program import Routing

_LAYER = LayerNames(
    attention_norm="operator_norm",
    mlp_norm="ffn_norm",
    out="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)


def _dense(reader: ConfigReader) -> DecoderSpec:
    return _spec(reader, _adjusted_size(reader))


def _adjusted_size(reader: ConfigReader) -> int:
    """Return F: two thirds of the stated width times a factor, rounded up to a multiple."""
    size = read_mlp_size(reader, 12288)
    if not reader.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    if reader.has("block_ffn_dim_multiplier"):
        size = int(read_factor(reader, "block_ffn_dim_multiplier") * size)
        multiple = reader.size("block_multiple_of", MAX_FEED_FORWARD, example=256, default=256)
        size = -(-size // multiple) * multiple
    return size


def _moe(reader: ConfigReader) -> DecoderSpec:
    spec = _spec(reader, read_mlp_size(reader, 7168))
    num_experts = read_num_experts(reader, default=32)
    moe = MoeSpec(
        num_experts,
        read_width(reader, "moe_intermediate_size", default=1792),
        "silu",
        Routing(
            read_top_k(reader, num_experts, default=4),
            "sigmoid",
            normalise=reader.flag("norm_topk_prob", True),
            scale=read_factor(reader, "routed_scaling_factor"),
        ),
        replace(MIXTRAL_NAMES, prefix="feed_forward.experts"),
        router="feed_forward.gate",
        choice_bias=("feed_forward.expert_bias" if reader.flag("use_expert_bias", True) else None),
    )
    dense = reader.count("num_dense_layers", MAX_LAYERS, default=2)
    layers = range(spec.num_layers)
    return replace(spec, experts=tuple(moe if layer >= dense else None for layer in layers))


def _spec(reader: ConfigReader, mlp_size: int) -> DecoderSpec:
    spec = read_spec(reader, activation="silu", mlp_size=mlp_size, biased="none")
    mixer = ShortConvMixer(
        "conv.", read_conv(reader, "conv_L_cache", 3), reader.flag("conv_bias", False)
    )
    spec = replace(
        spec,
        attention=replace(spec.attention, qk_norm=QkNorm()),
        names=Names(final_norm="embedding_norm", layer=_LAYER),
    )
    if reader.has("full_attn_idxs") and not reader.has("layer_types"):
        attention = reader.indices("full_attn_idxs", MAX_LAYERS)
        is_conv = tuple(layer not in attention for layer in range(read_num_layers(reader)))
    else:
        is_conv = read_recurrent(reader, ("conv",), default="full_attention")
    return with_mixers(spec, mixer, is_conv)


_KEYS = {"rms_norm_eps": "norm_eps"}
_DEFAULTS = {
    "norm_eps": 1e-5, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": True,
    "num_key_value_heads": 8, "block_ffn_dim_multiplier": 1.0, "max_position_embeddings": 128000,
}  # fmt: skip

LFM2 = decoder_family(
    "lfm2",
    ("Lfm2ForCausalLM",),
    _dense,
    models="LFM2 350M to 2.6B, LFM2.5",
    keys=_KEYS,
    defaults=_DEFAULTS,
)
LFM2_MOE = decoder_family(
    "lfm2_moe",
    ("Lfm2MoeForCausalLM",),
    _moe,
    models="LFM2-8B-A1B, LFM2-24B-A2B",
    keys=_KEYS,
    defaults=_DEFAULTS,
)

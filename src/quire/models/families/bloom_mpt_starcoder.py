"""Families with pre-norm layers and layer norms: StarCoder 2, Nemotron-4, BLOOM and MPT.

BLOOM and MPT use ALiBi instead of RoPE, and one tensor for q, k and v.
"""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.alibi import bloom_slopes, mpt_slopes
from quire.models.config_reader import MAX_FEED_FORWARD, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import (
    every_window,
    read_cap,
    read_hidden_size,
    read_num_layers,
    read_spec,
    read_split_heads,
    refuse_flags,
)
from quire.models.spec import DecoderSpec, LayerNames, Names


def _starcoder2(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    bias = reader.flag("use_bias", True)
    layer = LayerNames(up="mlp.c_fc", down="mlp.c_proj")
    return replace(
        spec,
        norm=replace(spec.norm, kind="layer", has_bias=True),
        attention=replace(
            spec.attention, windows=every_window(reader), qkv_bias=bias, out_bias=bias
        ),
        mlp=replace(spec.mlp, gated=False, bias=bias),
        names=Names(layer=layer),
    )


def _nemotron(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader)
    return replace(
        spec,
        norm=replace(spec.norm, kind="layer", has_bias=True, offset=1.0),
        mlp=replace(spec.mlp, gated=False),
    )


def _bloom(reader: ConfigReader) -> DecoderSpec:
    refuse_flags(reader, "apply_residual_connection_post_layernorm")
    spec = read_spec(
        reader,
        heads=read_split_heads(reader),
        activation="gelu_tanh",
        rotaries=[None] * read_num_layers(reader),
        mlp_size=4 * read_hidden_size(reader),
    )
    layer = LayerNames(
        qkv="self_attention.query_key_value",
        out="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    )
    return replace(
        spec,
        norm=replace(spec.norm, kind="layer", has_bias=True),
        attention=replace(
            spec.attention,
            fused="grouped",
            qkv_bias=True,
            out_bias=True,
            alibi_slopes=bloom_slopes(spec.attention.heads.num_heads),
        ),
        mlp=replace(spec.mlp, gated=False, bias=True),
        names=Names(
            root="transformer.",
            embed="word_embeddings",
            embed_norm="word_embeddings_layernorm",
            layers="h",
            final_norm="ln_f",
            layer=layer,
        ),
    )


def _mpt(reader: ConfigReader) -> DecoderSpec:
    attention = reader.section("attn_config") or ConfigReader({}, reader.where)
    if not attention.flag("alibi", True):
        raise UnsupportedModelError(f"{reader.where}: MPT without alibi is not supported")
    refuse_flags(attention, "qk_ln", "prefix_lm", "attn_uses_sequence_id")
    heads = read_split_heads(reader)
    hidden_size = read_hidden_size(reader)
    ratio = reader.size("expansion_ratio", MAX_FEED_FORWARD // hidden_size, example=4, default=4)
    spec = read_spec(
        reader,
        heads=heads,
        activation="gelu",
        rotaries=[None] * read_num_layers(reader),
        mlp_size=ratio * hidden_size,
    )
    bias_max = attention.number("alibi_bias_max", 1e-3, 1e3, example=8, default=8)
    layer = LayerNames(
        attention_norm="norm_1",
        mlp_norm="norm_2",
        qkv="attn.Wqkv",
        out="attn.out_proj",
        up="ffn.up_proj",
        down="ffn.down_proj",
    )
    return replace(
        spec,
        norm=replace(spec.norm, kind="layer"),
        attention=replace(
            spec.attention,
            fused="concat",
            clip_qkv=read_cap(attention, "clip_qkv"),
            scale=read_cap(attention, "softmax_scale"),
            alibi_slopes=mpt_slopes(heads.num_heads, bias_max),
        ),
        mlp=replace(spec.mlp, gated=False),
        names=Names(
            root="transformer.", embed="wte", layers="blocks", final_norm="norm_f", layer=layer
        ),
    )


STARCODER2 = decoder_family(
    "starcoder2",
    ("Starcoder2ForCausalLM",),
    _starcoder2,
    models="StarCoder 2",
    keys={"rms_norm_eps": "norm_epsilon"},
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu_pytorch_tanh",
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
)
NEMOTRON = decoder_family(
    "nemotron",
    ("NemotronForCausalLM",),
    _nemotron,
    models="Nemotron-4, Minitron",
    keys={"rms_norm_eps": "norm_eps"},
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2", "partial_rotary_factor": 0.5},
)
BLOOM = decoder_family(
    "bloom",
    ("BloomForCausalLM",),
    _bloom,
    models="BLOOM, BLOOMZ",
    keys={
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "rms_norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "seq_length",
    },
    defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 2048},
)
MPT = decoder_family(
    "mpt",
    ("MptForCausalLM", "MPTForCausalLM"),
    _mpt,
    models="MPT 7B and 30B",
    keys={
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_size": "d_model",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True},
)

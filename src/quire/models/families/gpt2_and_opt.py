"""Families with learned positions: GPT-2, whose weights are stored transposed, and OPT, whose layer
norms are before each block or (350m) after it."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_HIDDEN, MAX_POSITIONS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import (
    read_hidden_size,
    read_mlp_size,
    read_num_layers,
    read_spec,
    read_split_heads,
    refuse_flags,
)
from quire.models.spec import DecoderSpec, LayerNames, Names

GPT2_KEYS = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_OPT_FIRST = 2
"""The first rows of OPT's table of positions were reserved for padding."""


def _spec(
    reader: ConfigReader, *, bias: bool, first: int = 0, mlp_size: int | None = None
) -> DecoderSpec:
    """Read what both share. `first`: the row of a text's first position."""
    rotaries = [None] * read_num_layers(reader)
    heads = read_split_heads(reader)
    spec = read_spec(reader, heads=heads, rotaries=rotaries, mlp_size=mlp_size)
    count = reader.size("max_position_embeddings", MAX_POSITIONS, example=1024)
    return replace(
        spec,
        norm=replace(spec.norm, kind="layer", has_bias=True),
        attention=replace(spec.attention, qkv_bias=bias, out_bias=bias),
        mlp=replace(spec.mlp, gated=False, bias=bias),
        positions=(first + count, first),
    )


def _gpt2(reader: ConfigReader) -> DecoderSpec:
    refuse_flags(reader, "add_cross_attention")
    mlp_size = read_mlp_size(reader, 4 * read_hidden_size(reader))
    spec = _spec(reader, bias=True, mlp_size=mlp_size)
    scaled = reader.flag("scale_attn_weights", True)
    scale = spec.attention.heads.head_dim**-0.5 if scaled else 1.0
    by_layer = reader.flag("scale_attn_by_inverse_layer_idx", False)
    scales = [scale / (layer + 1) if by_layer else scale for layer in range(spec.num_layers)]
    layer = LayerNames(
        attention_norm="ln_1",
        mlp_norm="ln_2",
        qkv="attn.c_attn",
        out="attn.c_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
    )
    return replace(
        spec,
        attention=replace(spec.attention, fused="concat", scales=tuple(scales)),
        is_transposed=reader.flag("transposed_weights", True),
        names=Names(
            root="transformer.",
            embed="wte",
            positions="wpe",
            layers="h",
            final_norm="ln_f",
            layer=layer,
        ),
    )


def _opt(reader: ConfigReader) -> DecoderSpec:
    spec = _spec(reader, bias=reader.flag("enable_bias", True), first=_OPT_FIRST)
    size = reader.size("word_embed_proj_dim", MAX_HIDDEN, example=512, default=spec.hidden_size)
    norms = ("self_attn_layer_norm", "final_layer_norm")
    layer = LayerNames(out="self_attn.out_proj", up="fc1", down="fc2")
    before = reader.flag("do_layer_norm_before", True)
    if before:
        layer = replace(layer, attention_norm=norms[0], mlp_norm=norms[1])
    else:
        layer = replace(
            layer,
            attention_norm=None,
            mlp_norm=None,
            attention_sum_norm=norms[0],
            mlp_sum_norm=norms[1],
        )
    has_final = before and not reader.flag("_remove_final_layer_norm", False)
    has_weight = reader.flag("layer_norm_elementwise_affine", True)
    return replace(
        spec,
        norm=replace(spec.norm, has_weight=has_weight),
        embed_size=None if size == spec.hidden_size else size,
        names=Names(
            root="model.decoder.", final_norm="final_layer_norm" if has_final else None, layer=layer
        ),
    )


GPT2 = decoder_family(
    "gpt2",
    ("GPT2LMHeadModel",),
    _gpt2,
    models="GPT-2, DistilGPT-2",
    keys=GPT2_KEYS,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu_new", "tie_word_embeddings": True},
    ignorable=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),  # each layer's causal mask
)
OPT = decoder_family(
    "opt",
    ("OPTForCausalLM",),
    _opt,
    models="OPT, Galactica",
    keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu", "tie_word_embeddings": True},
    other_prefixes=("decoder.",),
    ignorable=(r"model\.decoder\.version",),
)

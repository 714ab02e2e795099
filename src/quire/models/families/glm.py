"""GLM-4 and ChatGLM 2 and 3: RoPE rotates adjacent pairs in half of each head; gate and up are one
tensor."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.models.config_reader import ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import read_heads, read_num_layers, read_spec, refuse_flags
from quire.models.rope import rope_section, rotary
from quire.models.spec import DecoderSpec, LayerNames, Names

_DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1.5625e-7,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}


def _glm(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, interleaved=True, biased="attention")
    return replace(
        spec, attention=replace(spec.attention, out_bias=False), mlp=replace(spec.mlp, fused=True)
    )


def _glm4(reader: ConfigReader) -> DecoderSpec:
    """Read GLM-4-0414, which also norms the outputs of the blocks."""
    names = LayerNames(
        attention_out_norm="post_self_attn_layernorm", mlp_out_norm="post_mlp_layernorm"
    )
    return replace(_glm(reader), names=Names(layer=names))


def _chatglm(reader: ConfigReader) -> DecoderSpec:
    """Source: vLLM 0.32, `models/chatglm.py`."""
    refuse_flags(reader, "apply_residual_connection_post_layernorm", "quantization_bit")
    for key in ("rmsnorm", "post_layer_norm", "multi_query_attention", "original_rope"):
        if not reader.flag(key, True):
            raise reader.error(key, False, "true, because false is not supported", True)
    if (scaling := rope_section(reader)) is not None:
        raise UnsupportedModelError(f"{scaling.where} is not supported here; leave it out")
    ratio = reader.number("rope_ratio", 1e-3, 1e6, example=1.0, default=1.0)
    bias = reader.flag("add_bias_linear", False)
    rope = ConfigReader({"rope_theta": 1e4 * ratio, "partial_rotary_factor": 0.5}, reader.where)
    rotation = rotary(reader, read_heads(reader).head_dim, scaling=rope, interleaved=True)
    rotaries = [rotation] * read_num_layers(reader)
    spec = read_spec(reader, activation="silu", rotaries=rotaries)
    layer = LayerNames(
        qkv="self_attention.query_key_value",
        out="self_attention.dense",
        gate_up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    )
    qkv_bias = reader.flag("add_qkv_bias", False) or bias
    return replace(
        spec,
        attention=replace(spec.attention, fused="concat", qkv_bias=qkv_bias, out_bias=bias),
        mlp=replace(spec.mlp, fused=True, bias=bias),
        names=Names(
            root="transformer.",
            embed="embedding.word_embeddings",
            layers="encoder.layers",
            final_norm="encoder.final_layernorm",
            head="transformer.output_layer",
            layer=layer,
        ),
    )


GLM = decoder_family(
    "glm", ("GlmForCausalLM",), _glm, models="GLM-4 9B, GLM-Edge", defaults=_DEFAULTS
)
GLM4 = decoder_family(
    "glm4", ("Glm4ForCausalLM",), _glm4, models="GLM-4-0414, GLM-Z1", defaults=_DEFAULTS
)
CHATGLM = decoder_family(
    "chatglm",
    ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    _chatglm,
    models="ChatGLM 2 and 3, GLM-4 9B as first published",
    keys={
        "num_hidden_layers": "num_layers",
        "num_key_value_heads": "multi_query_group_num",
        "intermediate_size": "ffn_hidden_size",
        "vocab_size": "padded_vocab_size",
        "rms_norm_eps": "layernorm_epsilon",
        "max_position_embeddings": "seq_length",
        "head_dim": "kv_channels",
    },
    ignorable=(r"transformer\.rotary_pos_emb\.inv_freq",),
)

"""Qwen3-Next, Qwen3.5 and Qwen3.6: three layers with the gated delta rule for each with attention.

Norms have 1 + weight, each head's result in attention has a gate, and RoPE rotates a quarter of a
head.
"""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import MoeSpec, in_sparse_layers
from quire.models.families.experts.qwen_moe import qwen_moe
from quire.models.families.recurrent_fields import read_conv, read_recurrent, with_mixers
from quire.models.mixers import GatedDeltaMixer
from quire.models.reading import read_activation, read_num_layers, read_spec
from quire.models.spec import DecoderSpec, QkNorm


def _next(reader: ConfigReader) -> DecoderSpec:
    spec = _spec(reader, is_grouped=True)
    return replace(spec, experts=_experts(reader, num_experts=512, top_k=10))


def _dense(reader: ConfigReader) -> DecoderSpec:
    return _spec(reader, is_grouped=False)


def _moe(reader: ConfigReader) -> DecoderSpec:
    spec = _spec(reader, is_grouped=False, mlp_size=1)
    return replace(spec, experts=_experts(reader, num_experts=256, top_k=8))


def _spec(reader: ConfigReader, *, is_grouped: bool, mlp_size: int | None = None) -> DecoderSpec:
    spec = read_spec(reader, mlp_size=mlp_size, biased="attention")
    key_heads = reader.size("linear_num_key_heads", MAX_HEADS, example=16, default=16)
    heads = reader.size("linear_num_value_heads", MAX_HEADS, example=32, default=32)
    if heads % key_heads:
        raise reader.error("linear_num_value_heads", heads, f"a multiple of {key_heads}", key_heads)
    mixer = GatedDeltaMixer(
        num_heads=heads,
        num_key_heads=key_heads,
        key_dim=reader.size("linear_key_head_dim", MAX_HEAD_DIM, example=128, default=128),
        value_dim=reader.size("linear_value_head_dim", MAX_HEAD_DIM, example=128, default=128),
        conv_width=read_conv(reader, "linear_conv_kernel_dim"),
        eps=spec.norm.eps,
        activation=read_activation(reader, "hidden_act"),
        qkvz_is_grouped=is_grouped and not reader.flag("linear_qkv_is_apart", False),
        ba_is_grouped=is_grouped,
        is_tiled=reader.flag("linear_heads_are_tiled", False),
    )
    spec = replace(
        spec,
        norm=replace(spec.norm, offset=1.0),
        attention=replace(spec.attention, qk_norm=QkNorm(), has_gate=True),
    )
    return with_mixers(spec, mixer, _recurrent(reader))


def _recurrent(reader: ConfigReader) -> tuple[bool, ...]:
    """Return the recurrent layers; without `layer_types`, all but each
    `full_attention_interval`-th."""
    if reader.has("layer_types"):
        return read_recurrent(reader)
    interval = reader.size("full_attention_interval", MAX_LAYERS, example=4, default=4)
    return tuple((layer + 1) % interval != 0 for layer in range(read_num_layers(reader)))


def _experts(reader: ConfigReader, *, num_experts: int, top_k: int) -> tuple[MoeSpec | None, ...]:
    moe = qwen_moe(
        reader, num_experts=num_experts, top_k=top_k, width=512, shared_width=512, normalise=True
    )
    return in_sparse_layers(reader, moe, read_num_layers(reader))


_DEFAULTS = {"head_dim": 256, "partial_rotary_factor": 0.25}

QWEN3_NEXT = decoder_family(
    "qwen3_next",
    ("Qwen3NextForCausalLM",),
    _next,
    models="Qwen3-Next-80B-A3B, Qwen3-Coder-Next",
    defaults={**_DEFAULTS, "num_key_value_heads": 2},
)
QWEN3_5 = decoder_family(
    "qwen3_5",
    ("Qwen3_5ForCausalLM",),
    _dense,
    models="Qwen3.5 0.8B to 27B, Qwen3.6-27B (text)",
    defaults={**_DEFAULTS, "num_key_value_heads": 4},
)
QWEN3_5_MOE = decoder_family(
    "qwen3_5_moe",
    ("Qwen3_5MoeForCausalLM",),
    _moe,
    models="Qwen3.5-35B-A3B to 397B-A17B, Qwen3.6-35B-A3B (text)",
    defaults={**_DEFAULTS, "num_key_value_heads": 2},
)

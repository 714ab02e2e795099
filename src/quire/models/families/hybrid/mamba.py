"""Families with Mamba 1: Mamba and Falcon-Mamba, and Jamba, which has attention and experts too."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.experts import (
    MAX_EXPERTS,
    ExpertNames,
    MoeSpec,
    read_num_experts,
    read_top_k,
    read_width,
)
from quire.models.families.hybrid.mamba2 import FINAL_NORM_NAMES, mixers_only
from quire.models.families.recurrent_fields import MAX_STATE, NO_LIMIT, read_conv, with_mixers
from quire.models.mixers import MambaMixer
from quire.models.reading import read_activation, read_hidden_size, read_num_layers, read_spec
from quire.models.spec import DecoderSpec
from quire.program import Routing


def _falcon_mamba(reader: ConfigReader) -> DecoderSpec:
    """Read Mamba with norms of dt, b and c that have no weights."""
    spec = _mamba(reader)
    eps = reader.number("mixer_rms_eps", 0.0, 1.0, example=1e-6, default=1e-6)
    mixers = (
        replace(mixer, norms="plain", eps=eps) if isinstance(mixer, MambaMixer) else mixer
        for mixer in spec.mixers
    )
    return replace(spec, mixers=tuple(mixers))


def _mamba(reader: ConfigReader) -> DecoderSpec:
    hidden = read_hidden_size(reader)
    width = reader.size("expand", 64, example=2, default=2) * hidden
    if reader.has("intermediate_size"):
        width = reader.size("intermediate_size", MAX_FEED_FORWARD, example=width)
    eps = reader.number("layer_norm_epsilon", 0.0, 1.0, example=1e-5, default=1e-5)
    mixer = MambaMixer(
        prefix="mixer.",
        width=width,
        state_dim=reader.size("state_size", MAX_STATE, example=16, default=16),
        dt_rank=_dt_rank(reader, "time_step_rank", hidden),
        conv_width=read_conv(reader, "conv_kernel"),
        activation=read_activation(reader, "hidden_act"),
        conv_bias=reader.flag("use_conv_bias", True),
        bias=reader.flag("use_bias", False),
    )
    spec = mixers_only(reader, eps, width)
    return with_mixers(spec, mixer, [True] * spec.num_layers)


def _dt_rank(reader: ConfigReader, key: str, hidden_size: int) -> int:
    if reader.text(key) == "auto":
        return -(-hidden_size // 16)
    default = -(-hidden_size // 16)
    return reader.size(key, MAX_FEED_FORWARD, example=160, default=default)


def _jamba(reader: ConfigReader) -> DecoderSpec:
    """Read Jamba. Attention has no RoPE. Each `*_period`-th layer has attention, or experts."""
    num_layers, hidden = read_num_layers(reader), read_hidden_size(reader)
    spec = read_spec(reader, rotaries=(None,) * num_layers, biased="none")
    mixer = MambaMixer(
        prefix="mamba.",
        width=reader.size("mamba_expand", 64, example=2, default=2) * hidden,
        state_dim=reader.size("mamba_d_state", MAX_STATE, example=16, default=16),
        dt_rank=_dt_rank(reader, "mamba_dt_rank", hidden),
        conv_width=read_conv(reader, "mamba_d_conv"),
        activation=read_activation(reader, "hidden_act"),
        conv_bias=reader.flag("mamba_conv_bias", True),
        bias=reader.flag("mamba_proj_bias", False),
        norms="weighted",
        eps=spec.norm.eps,
    )
    spec = replace(spec, names=FINAL_NORM_NAMES, experts=_jamba_experts(reader, num_layers))
    has_attention = _periodic(reader, "attn_layer", num_layers, 8, 4)
    return with_mixers(spec, mixer, [not one for one in has_attention])


def _jamba_experts(reader: ConfigReader, num_layers: int) -> tuple[MoeSpec | None, ...]:
    if reader.count("num_experts", MAX_EXPERTS, default=16) <= 1:
        return ()
    num_experts = read_num_experts(reader, default=16)
    moe = MoeSpec(
        num_experts,
        read_width(reader, "intermediate_size"),
        read_activation(reader, "hidden_act"),
        Routing(read_top_k(reader, num_experts, default=2), normalise=False),
        ExpertNames(prefix="feed_forward.experts"),
        router="feed_forward.router",
    )
    sparse = _periodic(reader, "expert_layer", num_layers, 2, 1)
    return tuple(moe if one else None for one in sparse)


def _periodic(
    reader: ConfigReader, key: str, num_layers: int, period: int, offset: int
) -> list[bool]:
    """Return which layers are at `{key}_offset` in each `{key}_period` of them."""
    period = reader.size(f"{key}_period", MAX_LAYERS, example=8, default=period)
    offset = reader.count(f"{key}_offset", period - 1, default=min(offset, period - 1))
    return [layer % period == offset for layer in range(num_layers)]


_DEFAULTS = {"tie_word_embeddings": True, "max_position_embeddings": NO_LIMIT}

MAMBA = decoder_family(
    "mamba",
    ("MambaForCausalLM", "MambaLMHeadModel"),
    _mamba,
    models="Mamba 130M to 2.8B",
    defaults=_DEFAULTS,
)
FALCON_MAMBA = decoder_family(
    "falcon_mamba",
    ("FalconMambaForCausalLM",),
    _falcon_mamba,
    models="Falcon-Mamba 7B",
    defaults=_DEFAULTS,
)
JAMBA = decoder_family(
    "jamba",
    ("JambaForCausalLM",),
    _jamba,
    models="Jamba 1.5 to 1.7, Jamba Reasoning 3B",
    defaults={"num_key_value_heads": 8},
)

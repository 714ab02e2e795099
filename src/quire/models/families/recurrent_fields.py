"""Reads what the families with recurrent layers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from quire.models.config_reader import MAX_FEED_FORWARD, MAX_HEAD_DIM, MAX_HEADS, ConfigReader
from quire.models.mixers import Mamba2Mixer, Mixer
from quire.models.reading import read_activation, read_hidden_size, read_num_layers
from quire.models.spec import AttentionSpec, DecoderSpec
from quire.program import HeadLayout

MAX_CONV = 64
"""Largest width of a convolution."""
MAX_STATE = 1024
"""Largest number of a state's numbers for each channel."""
RECURRENT = ("mamba", "linear_attention", "recurrent")
ATTENTION = ("attention", "full_attention")
NO_LIMIT = 1 << 20
"""Longest context of models that state none: nothing of theirs grows with it."""


def read_recurrent(
    reader: ConfigReader, recurrent: Sequence[str] = RECURRENT, default: str = "mamba"
) -> tuple[bool, ...]:
    """Read which layers are recurrent, from `layer_types`; the others have attention."""
    num_layers = read_num_layers(reader)
    kinds = reader.texts("layer_types", num_layers) or [default] * num_layers
    for kind in kinds:
        if kind not in (*recurrent, *ATTENTION):
            wanted = f"one of {', '.join((*recurrent, *ATTENTION))}"
            raise reader.error("layer_types", kind, wanted, ATTENTION[0])
    return tuple(kind in recurrent for kind in kinds)


def with_mixers(spec: DecoderSpec, mixer: Mixer, is_recurrent: Sequence[bool]) -> DecoderSpec:
    """Return the spec with the mixer in the recurrent layers."""
    return replace(spec, mixers=tuple(mixer if one else None for one in is_recurrent))


def no_attention(num_layers: int, width: int) -> AttentionSpec:
    """Return the spec of attention where no layer has it: rows of one head."""
    nothing = (None,) * num_layers
    return AttentionSpec(HeadLayout(1, 1, width), nothing, nothing)


def read_conv(reader: ConfigReader, key: str, default: int = 4) -> int:
    """Read the width of a convolution."""
    return reader.size(key, MAX_CONV, example=4, default=default)


def read_mamba2(reader: ConfigReader, eps: float, **others: object) -> Mamba2Mixer:
    """Read a Mamba 2 mixer from the keys `mamba_*`. `others`: fields that are not read."""
    hidden = read_hidden_size(reader)
    num_heads = reader.size("mamba_n_heads", MAX_HEADS, example=64, default=128)
    width = reader.size("mamba_expand", 64, example=2, default=2) * hidden
    if reader.has("mamba_d_ssm"):
        width = reader.size("mamba_d_ssm", MAX_FEED_FORWARD, example=1024)
    if width % num_heads:
        raise reader.error("mamba_n_heads", num_heads, f"a divisor of {width}", 1)
    head_dim = width // num_heads
    if reader.text("mamba_d_head") != "auto":
        given = reader.size("mamba_d_head", MAX_HEAD_DIM, example=64, default=head_dim)
        if given != head_dim:
            wanted = f"{head_dim}: the width {width} divided by {num_heads} heads"
            raise reader.error("mamba_d_head", given, wanted, head_dim)
    found = Mamba2Mixer(
        prefix="mamba.",
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=read_groups(reader, "mamba_n_groups", num_heads, 1),
        state_dim=reader.size("mamba_d_state", MAX_STATE, example=128, default=256),
        conv_width=read_conv(reader, "mamba_d_conv"),
        eps=eps,
        activation=read_activation(reader, "hidden_act"),
        conv_bias=reader.flag("mamba_conv_bias", True),
        in_bias=reader.flag("mamba_proj_bias", False),
        out_bias=reader.flag("mamba_proj_bias", False),
        dt_limits=read_dt_limits(reader),
    )
    return replace(found, **others)  # type: ignore[arg-type]


def read_groups(reader: ConfigReader, key: str, num_heads: int, default: int) -> int:
    """Read the number of groups of heads, each with its own b and c."""
    groups = reader.size(key, num_heads, example=1, default=default)
    if num_heads % groups:
        raise reader.error(key, groups, f"a divisor of {num_heads} heads", 1)
    return groups


def read_dt_limits(reader: ConfigReader) -> tuple[float, float]:
    """Read the limits of the time step; the upper one may be infinite."""
    low, high = reader.limits("time_step_limit", (0.0, math.inf))
    if not 0.0 <= low < high:
        raise reader.error("time_step_limit", [low, high], "two rising numbers", [0.0, 0.1])
    return low, high

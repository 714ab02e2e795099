"""OLMo 1 to 3 and EXAONE 4: from OLMo 2 on, norms apply to the output of a block instead of its
input.

OLMo 1 has layer norms without weights before the blocks. OLMo 2 and 3 norm the whole of q and k
before the split into heads; EXAONE 4 norms each head.
"""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import (
    pattern_windows,
    read_factor,
    read_heads,
    read_num_layers,
    read_spec,
    rotaries_by_kind,
)
from quire.models.rope import rotary
from quire.models.spec import DecoderSpec, LayerNames, Names, NormSpec, QkNorm

_EPS = 1e-5
POST_NORMS = Names(
    layer=LayerNames(
        attention_norm=None,
        attention_out_norm="post_attention_layernorm",
        mlp_norm=None,
        mlp_out_norm="post_feedforward_layernorm",
    )
)


def _first(reader: ConfigReader) -> DecoderSpec:
    spec = read_spec(reader, biased="attention")
    clip = read_factor(reader, "clip_qkv") if reader.has("clip_qkv") else None
    return replace(
        spec,
        norm=NormSpec(_EPS, "layer", has_weight=False),
        attention=replace(spec.attention, clip_qkv=clip),
    )


def _second(reader: ConfigReader) -> DecoderSpec:
    return _with_norms_after(read_spec(reader, biased="attention"), QkNorm("row"))


def _third(reader: ConfigReader) -> DecoderSpec:
    windows = pattern_windows(reader, 4)
    rotaries = rotaries_by_kind(reader, windows, _unscaled(reader))
    spec = read_spec(reader, rotaries=rotaries, biased="attention")
    spec = _with_norms_after(spec, QkNorm("row"))
    return replace(spec, attention=replace(spec.attention, windows=windows))


def _unscaled(reader: ConfigReader) -> ConfigReader:
    """Return the RoPE parameters of layers with a window if `rope_scaling` has one entry for all:
    the scaling applies only to layers without a window."""
    theta = reader.number("rope_theta", 1.0001, 1e12, example=5e5, default=5e5)
    flat = reader.section("rope_parameters")
    if flat is not None and flat.has("rope_theta"):
        theta = flat.number("rope_theta", 1.0001, 1e12, example=5e5)
    return ConfigReader({"rope_theta": theta}, reader.where)


def _exaone4(reader: ConfigReader) -> DecoderSpec:
    return _with_norms_after(exaone_spec(reader), QkNorm())


def exaone_spec(reader: ConfigReader) -> DecoderSpec:
    """Read Llama's spec with norms of the heads of q and k. If there are windows, layers without
    one have no RoPE."""
    num_layers = read_num_layers(reader)
    windows: tuple[int | None, ...] = (None,) * num_layers
    rotates = (True,) * num_layers
    if reader.has("sliding_window"):
        windows = pattern_windows(reader, _pattern(reader))
        rotates = tuple(window is not None for window in windows)
    rotation = rotary(reader, read_heads(reader).head_dim)
    rotaries = [rotation if one else None for one in rotates]
    spec = read_spec(reader, rotaries=rotaries, biased="none")
    return replace(spec, attention=replace(spec.attention, windows=windows, qk_norm=QkNorm()))


def _pattern(reader: ConfigReader) -> int:
    """Read `sliding_window_pattern`: a number n (every n-th layer has no window), or letters such
    as "LLLG"."""
    text = reader.text("sliding_window_pattern")
    if text is None:
        return reader.size("sliding_window_pattern", MAX_LAYERS, example=4, default=4)
    if set(text[:-1]) != {"L"} or text[-1] != "G":
        raise reader.error("sliding_window_pattern", text, "letters L before one G", "LLLG")
    return len(text)


def _with_norms_after(spec: DecoderSpec, qk_norm: QkNorm) -> DecoderSpec:
    return replace(spec, attention=replace(spec.attention, qk_norm=qk_norm), names=POST_NORMS)


OLMO = decoder_family("olmo", ("OlmoForCausalLM",), _first, models="OLMo 1")
OLMO2 = decoder_family(
    "olmo2", ("Olmo2ForCausalLM",), _second, models="OLMo 2", defaults={"rms_norm_eps": 1e-5}
)
OLMO3 = decoder_family(
    "olmo3",
    ("Olmo3ForCausalLM",),
    _third,
    models="OLMo 3",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 5e5},
)
EXAONE4 = decoder_family(
    "exaone4",
    ("Exaone4ForCausalLM",),
    _exaone4,
    models="EXAONE 4",
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
)

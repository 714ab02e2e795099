"""Cohere's Command models: attention and MLP read the same norm, RoPE rotates adjacent pairs, and
logits are scaled. Command R7B and Command A have sliding windows, and no RoPE in layers without
one."""

from __future__ import annotations

from dataclasses import replace

from quire.models.config_reader import MAX_LAYERS, ConfigReader
from quire.models.decoder import decoder_family
from quire.models.reading import pattern_windows, read_factor, read_heads, read_spec
from quire.models.rope import rotary
from quire.models.spec import DecoderSpec, LayerNames, Names, QkNorm


def _first(reader: ConfigReader) -> DecoderSpec:
    spec = _parallel(read_spec(reader, interleaved=True, biased="attention"), reader)
    if not reader.flag("use_qk_norm", False):
        return spec
    norm = QkNorm(kind="layer", weights="stacked")
    return replace(spec, attention=replace(spec.attention, qk_norm=norm))


def _second(reader: ConfigReader) -> DecoderSpec:
    pattern = reader.size("sliding_window_pattern", MAX_LAYERS, example=4, default=4)
    windows = pattern_windows(reader, pattern)
    rotation = rotary(reader, read_heads(reader).head_dim, interleaved=True)
    rotaries = [None if window is None else rotation for window in windows]
    spec = _parallel(read_spec(reader, rotaries=rotaries, biased="attention"), reader)
    return replace(spec, attention=replace(spec.attention, windows=windows))


def _parallel(spec: DecoderSpec, reader: ConfigReader) -> DecoderSpec:
    return replace(
        spec,
        norm=replace(spec.norm, kind="layer"),
        names=Names(layer=LayerNames(mlp_norm=None)),
        parallel=True,
        logits_scale=read_factor(reader, "logit_scale", 0.0625),
    )


_KEYS = {"rms_norm_eps": "layer_norm_eps"}
_DEFAULTS = {"rms_norm_eps": 1e-5, "tie_word_embeddings": True}

COHERE = decoder_family(
    "cohere",
    ("CohereForCausalLM",),
    _first,
    models="Command R and R+, Aya",
    keys=_KEYS,
    defaults={**_DEFAULTS, "rope_theta": 5e5},
)
COHERE2 = decoder_family(
    "cohere2",
    ("Cohere2ForCausalLM",),
    _second,
    models="Command R7B, Command A",
    keys=_KEYS,
    defaults={**_DEFAULTS, "head_dim": 128},
)

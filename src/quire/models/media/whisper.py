"""The encoders of Whisper, Qwen2-Audio and Voxtral, for the spectrum of a sound.

A convolution is a `Linear` over a frame and its two neighbours, side by side. The stem is the first
convolution. The second one has stride 2, and is the beginning of the tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from quire.errors import UnsupportedModelError
from quire.images.rules import Size
from quire.images.sound.rules import HOP, RATE, WINDOW, Sound
from quire.models.base import ACTIVATIONS, HfConfig
from quire.models.config_reader import ConfigReader
from quire.models.media.languages import STANDARD
from quire.models.media.model import Floats, Patching, TileStep, VisionModel
from quire.models.media.reading import text_width, token_id
from quire.models.media.tower import PATCHES, PROJECTOR, SIGLIP_NAMES, VISION, tower_spec
from quire.models.pooling.encoder import Biases, EncoderSpec, encoder_layers
from quire.program import Builder, Program, Tensor, Value

_EPS = 1e-5
_TAPS = 3
_NAMES = replace(
    SIGLIP_NAMES,
    layers="layers",
    attention_norm="self_attn_layer_norm",
    up="fc1",
    down="fc2",
    mlp_norm="final_layer_norm",
)
_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_act": "activation_function",
}
"""Names that some configurations have for keys."""
_PREFIXES = ("model.audio_tower.", "audio_tower.")
_ENCODER = ("model.encoder.", "encoder.")
_PROJECTOR_PREFIXES = ("model.multi_modal_projector.", "multi_modal_projector.")


def qwen2_audio(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of Qwen2-Audio: a row is the mean of two positions, normalised."""
    audio, dim = _section(reader), text_width(text)
    spec, frames = _spec(audio), _frames(audio, settings, pool=2, has_means=True)
    builder, norm = Builder("qwen2_audio-projector"), f"{VISION}layer_norm"
    x = builder.embed(Tensor(PROJECTOR + PATCHES, (1, spec.hidden_size)))
    x = builder.layer_norm(x, norm, _EPS)
    x = builder.linear(x, f"{PROJECTOR}linear", dim, bias=True, hint="project", exact=True)
    builder.vectors(builder.take_rows(x))
    token = "<|AUDIO|>"
    row_token_id = token_id(reader, "audio_token_index", token_id(reader, "audio_token_id", 151646))
    rules = _rules(audio, frames, is_divided=False)
    parts = _Parts(rules, frames, spec, builder.program(), is_normed=False)
    return parts.model("qwen2_audio", token, row_token_id)


def voxtral(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of Voxtral: a row has some normalised positions side by side."""
    audio, dim = _section(reader), text_width(text)
    spec = _spec(audio)
    pool, rest = divmod(spec.mlp_size, spec.hidden_size)
    frames = _frames(audio, settings, pool=pool, has_means=False)
    if rest or frames.most_patches % pool:
        what = f"a multiple of {spec.hidden_size}, by a divisor of {frames.most_patches}"
        raise audio.error("intermediate_size", spec.mlp_size, what, 4 * spec.hidden_size)
    act = ACTIVATIONS[reader.choice("projector_hidden_act", ACTIVATIONS, default="gelu")]
    builder = Builder("voxtral-projector")
    x = builder.embed(Tensor(PROJECTOR + PATCHES, (1, spec.mlp_size)))
    x = builder.linear(x, f"{PROJECTOR}linear_1", dim, bias=False, hint="project", exact=True)
    x = builder.act(x, act)
    x = builder.linear(x, f"{PROJECTOR}linear_2", dim, bias=False, hint="project", exact=True)
    builder.vectors(builder.take_rows(x))
    rules = _rules(audio, frames, is_divided=True)
    parts = _Parts(rules, frames, spec, builder.program(), is_normed=True)
    model = parts.model("voxtral", "[AUDIO]", token_id(reader, "audio_token_id", 24))
    prompt = "[INST][BEGIN_AUDIO][AUDIO][/INST]{language}[TRANSCRIBE]"
    return replace(model, transcription=prompt, languages=STANDARD)


def whisper(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """Whisper's own encoder: all its positions, normalised, are rows for the decoder."""
    audio = reader.translated({key: own for key, own in _KEYS.items() if reader.has(own)}, {})
    spec, frames = _spec(audio), _frames(audio, settings, pool=1, has_means=False)
    if ConfigReader(text).size("d_model", 1 << 17, example=512) != spec.hidden_size:
        raise audio.error("d_model", spec.hidden_size, "that of the decoder", spec.hidden_size)
    rules = msgspec.structs.replace(_rules(audio, frames, is_divided=True), most_tiles=1)
    parts = _Parts(rules, frames, spec, None, is_normed=True)
    model = parts.model("whisper", "", 0)
    return replace(model, is_source=True, prefixes=_ENCODER, projector_prefixes=_ENCODER)


@dataclass(frozen=True, kw_only=True)
class PooledFrames(Patching):
    """Frames in pairs, of which the second convolution makes positions of the tower. A row of the
    text is made of `pool` positions: their mean, or all of them."""

    most_patches: int
    pool: int
    has_means: bool

    @property
    def most_rows(self) -> int:  # type: ignore[override]
        """The rows of the longest tile."""
        return self.most_patches // self.pool

    def num_rows(self, size: Size) -> int:
        return size[0] // 2 // self.pool

    def stem_step(self, values: Floats) -> TileStep:
        """A row has a frame and its neighbours. Of a tile that is not the longest, the last frame
        is a neighbour alone."""
        count = len(values) // 2 * 2
        padded = np.zeros((count + 2, values.shape[1]), np.float32)
        padded[1 : 1 + min(len(values), count + 1)] = values
        return TileStep(_side_by_side([padded[tap : tap + count] for tap in range(_TAPS)]))

    def step(self, values: Floats, tables: Sequence[Floats]) -> TileStep:
        del tables
        padded = np.concatenate([np.zeros_like(values[:1]), values])
        count = len(values) // 2
        return TileStep(_side_by_side([padded[tap : tap + 2 * count : 2] for tap in range(_TAPS)]))

    def merged(self, hidden: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        del tables
        parts = hidden[: self.num_rows(size) * self.pool].reshape(-1, self.pool, hidden.shape[1])
        if self.has_means:
            means: Floats = parts.mean(axis=1, dtype=np.float32)
            return means
        return np.ascontiguousarray(parts).reshape(len(parts), -1)


def _side_by_side(taps: Sequence[Floats]) -> Floats:
    """Rows [T, channels * taps] in the order of a convolution's kernel."""
    return np.stack(taps, axis=2).reshape(len(taps[0]), -1)


def _section(reader: ConfigReader) -> ConfigReader:
    found = reader.section("audio_config")
    if found is None:
        raise reader.error("audio_config", None, "an object", {})
    if found.flag("scale_embedding", False):
        raise UnsupportedModelError("config.json: audio_config.scale_embedding must be false")
    return found.translated({key: own for key, own in _KEYS.items() if found.has(own)}, {})


def _spec(audio: ConfigReader) -> EncoderSpec:
    spec = tower_spec(audio, _NAMES, biases=Biases(k=False))
    act = audio.choice("hidden_act", ACTIVATIONS, default="gelu")
    return replace(spec, activation=act, eps=_EPS)


def _frames(
    audio: ConfigReader, settings: ConfigReader, *, pool: int, has_means: bool
) -> PooledFrames:
    """Raises UnsupportedModelError for a feature extractor with other features than Whisper's."""
    wanted = {
        "sampling_rate": RATE,
        "hop_length": HOP,
        "n_fft": WINDOW,
        "feature_size": audio.size("num_mel_bins", 1024, example=128, default=128),
        "padding_value": 0,
        "padding_side": "right",
    }
    for key, value in wanted.items():
        if settings.raw(key) not in (None, value):
            raise UnsupportedModelError(f"preprocessor_config.json: {key} must be {value}")
    if settings.raw("dither") or settings.flag("do_normalize", False):
        raise UnsupportedModelError("preprocessor_config.json: dither and do_normalize must be off")
    positions = audio.size("max_source_positions", 1 << 16, example=1500, default=1500)
    return PooledFrames(most_patches=positions, pool=pool, has_means=has_means)


def _rules(audio: ConfigReader, frames: PooledFrames, *, is_divided: bool) -> Sound:
    bins = audio.size("num_mel_bins", 1024, example=128, default=128)
    return Sound(bins=bins, frames=2 * frames.most_patches, pool=frames.pool, is_divided=is_divided)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts that the two families have in common, besides their own projectors."""

    rules: Sound
    frames: PooledFrames
    spec: EncoderSpec
    projector: Program | None
    is_normed: bool
    """Whether the norm is at the end of the tower, and not in the projector."""

    def model(self, family: str, token: str, row_token_id: int) -> VisionModel:
        """The whole. `token` stands for a sound in a prompt, and for each of its rows."""
        stem = Builder(f"{family}-stem")
        stem.vectors(stem.take_rows(self._convolution(stem, self.rules.bins, "conv1")))
        tower, spec = Builder(f"{family}-tower"), self.spec
        x = self._convolution(tower, spec.hidden_size, "conv2")
        shape = (self.frames.most_patches, spec.hidden_size)
        x = tower.learned_positions(x, Tensor(f"{VISION}embed_positions.weight", shape))
        x = encoder_layers(tower, x, spec)
        if self.is_normed:
            x = tower.layer_norm(x, f"{VISION}layer_norm", spec.eps, hint="last_norm")
        tower.vectors(tower.take_rows(x))
        return VisionModel(
            family,
            self.rules,
            self.frames,
            tower.program(),
            self.projector,
            token,
            token,
            row_token_id,
            lambda layout: token * self.frames.num_tile_rows(layout),
            _PREFIXES,
            _PROJECTOR_PREFIXES,
            stem=stem.program(),
        )

    def _convolution(self, builder: Builder, width: int, name: str) -> Value:
        x = builder.embed(Tensor(VISION + PATCHES, (1, _TAPS * width)))
        dim = self.spec.hidden_size
        x = builder.linear(x, VISION + name, dim, bias=True, hint=name, exact=True)
        return builder.act(x, "gelu")

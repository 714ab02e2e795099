"""The encoders of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Qwen2.5 computes most layers in windows, so its squares of patches are in the order of windows.
Qwen3 adds positions that are interpolated from a table, and gives the text hidden states of several
layers (deepstack).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from quire.images.rules import Frames, Layout, Multiples
from quire.models.base import ACTIVATIONS, HfConfig
from quire.models.config_reader import ConfigReader
from quire.models.media.grid import GridPatches, axial_rotary
from quire.models.media.model import VideoForm, VisionModel
from quire.models.media.reading import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    MAX_WIDTH,
    check_sides,
    normalisation,
    text_width,
    token_id,
    vision_section,
)
from quire.models.media.settings import video_settings
from quire.models.media.tower import PATCHES, PROJECTOR, VISION, square_side
from quire.models.pooling.encoder import EncoderNames, EncoderSpec, encoder_layer
from quire.program import Builder, HeadLayout, Program, Tensor, Value

_MAX_PIXELS = 1 << 26
_SIZE = frozenset({"shortest_edge", "longest_edge", "min_pixels", "max_pixels"})
_EXAMPLE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
_MAX_LAYERS = 1024
_MAX_FPS = 1000.0
_EPS = 1e-6
_TABLE = f"{VISION}pos_embed.weight"


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts in which the three generations differ."""

    spec: EncoderSpec
    patches: GridPatches
    patch_bias: bool
    taps: tuple[int, ...]
    """Layers whose results the text gets, besides the last."""
    last_norm: str
    layers: tuple[str, str]
    """The two linear layers of the projector."""


def qwen_vl(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    """The encoder of a checkpoint."""
    parts = _parts(reader.text("model_type") or "", vision_section(reader))
    patches = parts.patches
    resizing = Multiples(**_limits(settings, patches, 56 * 56, 28 * 28 * 1280))
    of_frames = video_settings(reader)
    video = _video(reader, parts, of_frames)
    most = max(resizing.most_squares(), video.resizing.most_squares())
    return VisionModel(
        "qwen_vl",
        resizing,
        replace(patches, most_patches=most * patches.merge**2),
        _tower(parts),
        _projector(parts, text_width(text)),
        "<|image_pad|>",
        "<|image_pad|>",
        token_id(reader, "image_token_id", 151655),
        lambda layout: "<|image_pad|>" * sum(patches.num_rows(size) for size in layout.sizes),
        ("model.visual.", "visual."),
        ("model.visual.", "visual."),
        video=video,
        settings=frozenset(of_frames.used),
    )


def _limits(settings: ConfigReader, patches: GridPatches, fewest: int, most: int) -> dict[str, Any]:
    """The fields of `Multiples`, with these defaults."""
    most = _pixels(settings, "longest_edge", "max_pixels", most)
    fewest = _pixels(settings, "shortest_edge", "min_pixels", min(fewest, most))
    check_sides(
        settings,
        patch_size=patches.patch,
        merge_size=patches.merge,
        temporal_patch_size=patches.frames,
    )
    factor = patches.patch * patches.merge
    if most < max(fewest, factor * factor):
        raise settings.error(
            "max_pixels", most, "at least min_pixels and one token", 28 * 28 * 1280
        )
    return {
        **normalisation(settings, BICUBIC, CLIP_MEAN, CLIP_STD),
        "factor": factor,
        "fewest_pixels": fewest,
        "most_pixels": most,
    }


def _video(reader: ConfigReader, parts: _Parts, settings: ConfigReader) -> VideoForm:
    """Qwen3 writes the time of each tile as text before its rows, in place of the whole mark; the
    others have the rows of all tiles in a row, at distances on the axis of time."""
    patches, kind = parts.patches, reader.text("model_type") or ""
    fps = settings.number("fps", 1e-3, _MAX_FPS, example=2.0, default=2.0)
    seconds = patches.frames / fps
    has_times = kind.startswith("qwen3")
    unit = patches.patch * patches.merge
    limits = _limits(settings, patches, 128 * unit * unit, 768 * unit * unit)
    token, begin, end = "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"

    def expansion(layout: Layout) -> str:
        rows = [token * patches.num_rows(size) for size in layout.sizes]
        if not has_times:
            return "".join(rows)
        last = layout.num_given - 1  # it fills the last tile
        ends = (
            (min(begin, last), min(begin + patches.frames - 1, last))
            for begin in range(0, len(rows) * patches.frames, patches.frames)
        )
        times = ((first / fps + final / fps) / 2 for first, final in ends)
        return "".join(
            f"<{time:.1f} seconds>{begin}{own}{end}" for time, own in zip(times, rows, strict=True)
        )

    per_second = 1 / seconds  # Qwen2 counts tiles
    if kind == "qwen2_5_vl":
        per_second = vision_section(reader).number(
            "tokens_per_second", 0.0, _MAX_FPS, example=4, default=4.0
        )
    return VideoForm(
        Frames(**limits, per_tile=patches.frames, counts_frames=has_times),
        f"{begin}{token}{end}" if has_times else token,
        token,
        token_id(reader, "video_token_id", 151656),
        expansion,
        0.0 if has_times else per_second * seconds,
    )


def _pixels(settings: ConfigReader, edge: str, key: str, default: int) -> int:
    """A number of pixels, under a key of its own, or in `size` under the name of an edge."""
    value, size = settings.raw(key), settings.raw("size")
    if size is not None and not (isinstance(size, dict) and _SIZE.intersection(size)):
        raise settings.error("size", size, "an object with these numbers of pixels", _EXAMPLE)
    if value is None and size is not None:
        value = size.get(edge, size.get(key))
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= _MAX_PIXELS:
        raise settings.error(key, value, "a number of pixels", default)
    return value


def _parts(model_type: str, vision: ConfigReader) -> _Parts:
    is_second, is_third = model_type == "qwen2_vl", model_type.startswith("qwen3")
    width = vision.size("embed_dim" if is_second else "hidden_size", MAX_WIDTH, example=1280)
    heads = vision.size("num_heads", 1024, example=16)
    if width % heads or width // heads % 4:
        raise vision.error("num_heads", heads, f"a divisor of {width // 4}", 16)
    count = vision.size("depth", _MAX_LAYERS, example=32)
    patch, merge = (
        square_side(vision, "patch_size", 14),
        square_side(vision, "spatial_merge_size", 2),
    )
    frames = square_side(vision, "temporal_patch_size", 2)
    mlp = int(width * vision.number("mlp_ratio", 0.01, 64.0, example=4, default=4.0))
    if not is_second:
        mlp = vision.size("intermediate_size", 1 << 18, example=3420)
    default = "quick_gelu" if is_second else "gelu_pytorch_tanh" if is_third else "silu"
    window, full = 0, tuple(range(count))
    if not is_second and not is_third:
        window = vision.size("window_size", MAX_WIDTH, example=112, default=112) // patch // merge
        full = _layer_numbers(vision, "fullatt_block_indexes", (7, 15, 23, 31), count)
        if not window:
            raise vision.error("window_size", 0, f"at least {patch * merge}", 112)
    taps: tuple[int, ...] = ()
    tables: tuple[Tensor, ...] = ()
    if is_third:
        key = "deepstack_visual_indexes"
        taps = _layer_numbers(vision, key, (8, 16, 24), count)
        if list(taps) != sorted({*taps}):
            raise vision.error(key, list(taps), "a list of growing numbers", sorted({*taps}))
        entries = vision.size("num_position_embeddings", 1 << 24, example=2304)
        tables = (Tensor(_TABLE, (entries, width)),)
    gated = bool(window)
    rope = vision.section("rope_parameters") or vision
    theta = rope.number("rope_theta", 1.0001, 1e12, example=1e4, default=1e4)
    spec = EncoderSpec(
        num_layers=count,
        hidden_size=width,
        vocab_size=1,
        heads=HeadLayout(heads, heads, width // heads),
        mlp_size=mlp,
        activation=vision.choice("hidden_act", ACTIVATIONS, default=default),
        eps=_EPS,
        max_model_len=MAX_WIDTH,
        norm_first=True,
        rotaries=(axial_rotary(width // heads, theta),) * count,
        names=EncoderNames(
            root=VISION,
            layers="blocks",
            qkv="attn.qkv",
            out="attn.proj",
            attention_norm="norm1",
            mlp_norm="norm2",
            up="mlp.up_proj" if gated else "mlp.linear_fc1" if is_third else "mlp.fc1",
            gate="mlp.gate_proj" if gated else "",
            down="mlp.down_proj" if gated else "mlp.linear_fc2" if is_third else "mlp.fc2",
        ),
        norm_kind="rms" if gated else "layer",
        spans=tuple(layer not in full for layer in range(count)),
    )
    patches = GridPatches(patch, merge, frames, 1 + len(taps), window, tables)
    if is_third:
        return _Parts(spec, patches, True, taps, "norm", ("linear_fc1", "linear_fc2"))
    return _Parts(spec, patches, False, taps, "ln_q", ("mlp.0", "mlp.2"))


def _layer_numbers(
    vision: ConfigReader, key: str, default: tuple[int, ...], count: int
) -> tuple[int, ...]:
    value = vision.raw(key)
    value = list(default) if value is None else value
    if not isinstance(value, list) or not all(
        type(one) is int and 0 <= one < count for one in value
    ):
        raise vision.error(key, value, f"a list of numbers below {count}", [count - 1])
    return tuple(value)


def _tower(parts: _Parts) -> Program:
    """From patches to hidden states: those of the last layer, then those of the taps."""
    spec, patches = parts.spec, parts.patches
    builder, dim = Builder("qwen-vision"), spec.hidden_size
    width = 3 * patches.frames * patches.patch**2
    x = builder.embed(Tensor(VISION + PATCHES, (1, width)))
    name = f"{VISION}patch_embed.proj"
    x = builder.linear(x, name, dim, bias=parts.patch_bias, hint="patch", exact=True)
    if patches.tables:
        x = builder.add(x, builder.given_columns(width, dim, 1))
    taps = list[Value]()
    for layer in range(spec.num_layers):
        with builder.scope(f"layers.{layer}"):
            x = encoder_layer(builder, x, spec, layer)
        if layer in parts.taps:
            taps.append(x)
    norm = f"{VISION}merger.{parts.last_norm}"
    if spec.norm_kind == "rms":
        x = builder.rms_norm(x, f"{norm}.weight", _EPS, "last_norm")
    else:
        x = builder.layer_norm(x, norm, _EPS, hint="last_norm")
    for tap in taps:
        x = builder.join_heads(x, tap, 1, "taps")
    builder.vectors(builder.take_rows(x))
    return builder.program()


def _projector(parts: _Parts, text_width: int) -> Program:
    """From squares of hidden states to rows of the text: one part for each part of the squares."""
    builder = Builder("qwen-projector")
    width = parts.spec.hidden_size * parts.patches.merge**2
    x = builder.embed(Tensor(PROJECTOR + PATCHES, (1, width)))
    rows = _projected(builder, x, parts, "merger", width, text_width)
    for index in range(len(parts.taps)):
        prefix = f"deepstack_merger_list.{index}"
        with builder.scope(prefix):
            x = builder.given_columns((1 + index) * width, width, 1)
            x = builder.layer_norm(x, f"{PROJECTOR}{prefix}.norm", _EPS)
            x = _projected(builder, x, parts, prefix, width, text_width)
            rows = builder.join_heads(rows, x, 1, "rows")
    builder.vectors(builder.take_rows(rows))
    return builder.program()


def _projected(
    builder: Builder, x: Value, parts: _Parts, prefix: str, width: int, text_width: int
) -> Value:
    first, second = (f"{PROJECTOR}{prefix}.{layer}" for layer in parts.layers)
    x = builder.act(builder.linear(x, first, width, bias=True, hint="project", exact=True), "gelu")
    return builder.linear(x, second, text_width, bias=True, hint="project", exact=True)

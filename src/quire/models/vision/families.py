"""The families with an image encoder: each reads a checkpoint's settings into a `VisionModel`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from quire.errors import UnsupportedModelError
from quire.images.rules import Cropped, Layout, RatioTiles, Size, SquareTiles
from quire.models.base import HfConfig
from quire.models.config_reader import ConfigReader
from quire.models.pooling.encoder import Biases, EncoderNames
from quire.models.text_part import text_part
from quire.models.vision.model import Floats, VisionModel, shuffled
from quire.models.vision.settings import image_settings
from quire.models.vision.tower import (
    SIGLIP_NAMES,
    VISION,
    Tower,
    projector,
    square_side,
    tower_spec,
)

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)
_LANCZOS, _BICUBIC = 1, 3
_MAX = 1 << 16


def vision_model(hf_config: HfConfig) -> VisionModel | None:
    """The encoder of a checkpoint; None: its family has none here. Raises CheckpointError for
    impossible settings, UnsupportedModelError for a feature that is not implemented."""
    make = _FAMILIES.get(str(hf_config.get("model_type")))
    if make is None or not isinstance(hf_config.get("vision_config"), dict):
        return None
    return make(ConfigReader(hf_config), image_settings(hf_config), text_part(hf_config))


def _idefics3(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    vision = _vision(reader)
    spec = tower_spec(vision, SIGLIP_NAMES)
    patch, size = square_side(vision, "patch_size", 32), square_side(vision, "image_size", 224)
    tower = Tower(spec, patch, size // patch, last_norm="post_layernorm")
    factor = reader.size("scale_factor", 64, example=4, default=2)
    if tower.side % factor:
        raise reader.error("scale_factor", factor, f"a divisor of {tower.side} patches", 1)
    width = spec.hidden_size * factor * factor
    rows = (tower.side // factor) ** 2
    tile = _edge(settings, "max_image_size", "longest_edge", 364)
    if tile != size:
        raise settings.error("max_image_size", tile, "as large as the encoder's tiles", size)
    resizing = SquareTiles(
        **_normalisation(settings, _LANCZOS, _HALF, _HALF),
        longest=_edge(settings, "size", "longest_edge", 4 * 364),
        tile=tile,
        is_split=settings.flag("do_image_splitting", True),
    )
    return VisionModel(
        "idefics3",
        resizing,
        tower,
        tower.program("idefics3"),
        projector("idefics3", width, _width(text), [("modality_projection.proj", False)], "gelu"),
        partial(shuffled, factor=factor),
        rows,
        "<image>",
        "<image>",
        _token_id(reader, "image_token_id", 128257),
        partial(_idefics3_prompt, "<image>" * rows),
        ("model.vision_model.", "vision_model."),
        ("model.connector.", "connector."),
    )


def _idefics3_prompt(rows: str, layout: Layout) -> str:
    around, whole = "<fake_token_around_image>", "<global-img>"
    tiles = "".join(
        "".join(
            f"{around}<row_{row + 1}_col_{column + 1}>{rows}" for column in range(layout.columns)
        )
        + "\n"
        for row in range(layout.rows)
    )
    return f"{tiles}{chr(10) * bool(tiles)}{around}{whole}{rows}{around}"


def _llava(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    vision = _vision(reader)
    kind = vision.text("model_type") or "clip_vision_model"
    if kind not in ("clip_vision_model", "siglip_vision_model"):
        raise UnsupportedModelError(
            f"config.json: vision_config.model_type {kind!r} is not supported for images; "
            "supported are clip_vision_model, siglip_vision_model"
        )
    is_clip = kind == "clip_vision_model"
    count = vision.size("num_hidden_layers", 1024, example=24)
    layer = reader.raw("vision_feature_layer")
    layer = -2 if layer is None else layer
    if type(layer) is not int or not -count - 1 <= layer <= count:
        raise UnsupportedModelError(
            f"config.json: vision_feature_layer is {layer!r}; one of the {count} layers must be "
            "named, such as -2"
        )
    drops = (reader.text("vision_feature_select_strategy") or "default") == "default"
    if drops is not is_clip:
        raise UnsupportedModelError(
            "config.json: vision_feature_select_strategy must be default for a CLIP encoder and "
            "full for a SigLIP encoder"
        )
    spec = tower_spec(vision, SIGLIP_NAMES, layers=layer if layer >= 0 else count + 1 + layer)
    if vision.text("hidden_act") is None:
        spec = replace(spec, activation="gelu_quick" if is_clip else "gelu_tanh")
    if vision.raw("layer_norm_eps") is None and is_clip:
        spec = replace(spec, eps=1e-5)
    patch, size = square_side(vision, "patch_size", 14), square_side(vision, "image_size", 336)
    tower = Tower(spec, patch, size // patch)
    if is_clip:
        tower = replace(
            tower,
            patch_bias=False,
            class_row="embeddings.class_embedding",
            first_norm="pre_layrnorm",
        )
    bias = reader.flag("multimodal_projector_bias", True)
    act = reader.text("projector_hidden_act") or "gelu"
    crop = _size(settings, "crop_size", size)
    if crop != (size, size):
        raise settings.error("crop_size", crop, "as large as the encoder's tiles", size)
    resizing = Cropped(
        **_normalisation(settings, _BICUBIC, _CLIP_MEAN, _CLIP_STD),
        shortest=_edge(settings, "size", "shortest_edge", size),
        crop=crop,
    )
    rows = tower.side**2
    return VisionModel(
        "llava",
        resizing,
        tower,
        tower.program("llava"),
        projector(
            "llava", spec.hidden_size, _width(text), [("linear_1", bias), ("linear_2", bias)], act
        ),
        _as_it_is,
        rows,
        "<image>",
        "<image>",
        _token_id(reader, "image_token_index", 32000),
        lambda _: "<image>" * rows,
        (
            "model.vision_tower.vision_model.",
            "vision_tower.vision_model.",
            "model.vision_tower.",
            "vision_tower.",
        ),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    )


def _internvl(reader: ConfigReader, settings: ConfigReader, text: HfConfig) -> VisionModel:
    vision = _vision(reader)
    if (vision.text("norm_type") or "layer_norm") != "layer_norm" or vision.flag(
        "use_qk_norm", False
    ):
        raise UnsupportedModelError(
            "config.json: vision_config has norm_type rms_norm or use_qk_norm, which are not "
            "supported for images"
        )
    names = EncoderNames(
        root=VISION,
        layers="encoder.layer",
        q="attention.q_proj",
        k="attention.k_proj",
        v="attention.v_proj",
        out="attention.projection_layer",
        attention_norm="layernorm_before",
        up="mlp.fc1",
        down="mlp.fc2",
        mlp_norm="layernorm_after",
        attention_factors="lambda_1",
        mlp_factors="lambda_2",
    )
    biases = Biases(qkv=vision.flag("attention_bias", False))
    spec = tower_spec(vision, names, biases=biases)
    if vision.text("hidden_act") is None:
        spec = replace(spec, activation="gelu")
    patch, size = square_side(vision, "patch_size", 14), square_side(vision, "image_size", 448)
    tower = Tower(
        spec,
        patch,
        size // patch,
        patches="embeddings.patch_embeddings.projection",
        positions="embeddings.position_embeddings",
        class_row="embeddings.cls_token",
        last_norm="" if vision.flag("use_mean_pooling", True) else "layernorm",
    )
    ratio = reader.number("downsample_ratio", 0.0, 1.0, example=0.5, default=0.5)
    factor = round(1 / ratio) if ratio else 0
    if not factor or tower.side % factor:
        raise reader.error("downsample_ratio", ratio, f"1 / a divisor of {tower.side}", 0.5)
    resizing = RatioTiles(
        **_normalisation(settings, _BICUBIC, _CLIP_MEAN, _CLIP_STD),
        tile=_size(settings, "size", size),
        fewest=settings.size("min_patches", 64, example=1, default=1),
        most=settings.size("max_patches", 64, example=12, default=12),
        is_split=settings.flag("crop_to_patches", False),
    )
    rows = (tower.side // factor) ** 2
    act = reader.text("projector_hidden_act") or "gelu"
    return VisionModel(
        "internvl",
        resizing,
        tower,
        tower.program("internvl"),
        projector(
            "internvl",
            spec.hidden_size * factor * factor,
            _width(text),
            [("linear_1", True), ("linear_2", True)],
            act,
            norm="layer_norm",
        ),
        partial(shuffled, factor=factor),
        rows,
        "<IMG_CONTEXT>",
        "<IMG_CONTEXT>",
        _token_id(reader, "image_token_id", 151667),
        lambda layout: f"<img>{'<IMG_CONTEXT>' * (rows * len(layout.sizes))}</img>",
        ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    )


_FAMILIES: dict[str, Callable[[ConfigReader, ConfigReader, HfConfig], VisionModel]] = {
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "llava": _llava,
    "internvl": _internvl,
}
"""By the `model_type` of the whole checkpoint."""


def _as_it_is(hidden: Floats, side: int) -> Floats:
    del side
    return hidden


def _vision(reader: ConfigReader) -> ConfigReader:
    found = reader.section("vision_config")
    if found is None:
        raise reader.error("vision_config", None, "an object", {})
    return found


def _width(text: HfConfig) -> int:
    return ConfigReader(text).size("hidden_size", _MAX, example=2048)


def _token_id(reader: ConfigReader, key: str, default: int) -> int:
    found = reader.token_ids(key) or (default,)
    return found[0]


def _edge(settings: ConfigReader, key: str, inner: str, default: int) -> int:
    """A length that is written as {"longest_edge": 2048}, or as a number."""
    value = settings.raw(key)
    if isinstance(value, dict):
        value = value.get(inner, value.get("height"))
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= _MAX:
        raise settings.error(key, value, f'{{"{inner}": a whole number}}', {inner: default})
    return value


def _size(settings: ConfigReader, key: str, default: int) -> Size:
    value = settings.raw(key)
    if isinstance(value, dict):
        value = (value.get("height"), value.get("width"))
    else:
        side = default if value is None else value
        value = (side, side)
    if not all(type(one) is int and 1 <= one <= _MAX for one in value):
        raise settings.error(key, value, "a height and a width", default)
    return value[0], value[1]


def _normalisation(
    settings: ConfigReader, resample: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> dict[str, Any]:
    for flag in ("do_resize", "do_rescale", "do_normalize"):
        if not settings.flag(flag, True):
            raise UnsupportedModelError(f"preprocessor_config.json: {flag} must be true")
    if settings.flag("do_pad", False) and settings.text("image_processor_type") in (
        "LlavaImageProcessor",
        "LlavaImageProcessorFast",
    ):
        raise UnsupportedModelError("preprocessor_config.json: do_pad must be false")
    return {
        "resample": settings.count("resample", 5, default=resample),
        "mean": _three(settings, "image_mean", mean),
        "std": _three(settings, "image_std", std),
        "rescale": settings.number("rescale_factor", 0.0, 1.0, example=1 / 255, default=1 / 255),
    }


def _three(settings: ConfigReader, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    value = settings.raw(key)
    if value is None:
        return default
    is_list = isinstance(value, list) and len(value) == 3
    if not is_list or not all(isinstance(one, int | float) and abs(one) < 1e6 for one in value):
        raise settings.error(key, value, "a list of three numbers", list(default))
    return tuple(float(one) for one in value)

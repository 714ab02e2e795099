"""Reads what several families have in their settings."""

from __future__ import annotations

from typing import Any

from quire.errors import UnsupportedModelError
from quire.images.rules import Size
from quire.models.base import HfConfig
from quire.models.config_reader import ConfigReader

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
"""Pillow's numbers of filters."""
MAX_WIDTH = 1 << 16


def vision_section(reader: ConfigReader) -> ConfigReader:
    """The settings of the encoder. Raises CheckpointError if there are none."""
    found = reader.section("vision_config")
    if found is None:
        raise reader.error("vision_config", None, "an object", {})
    return found


def text_width(text: HfConfig) -> int:
    """Numbers of a row of the text model."""
    return ConfigReader(text).size("hidden_size", MAX_WIDTH, example=2048)


def token_id(reader: ConfigReader, key: str, default: int) -> int:
    """The id of a token, under a key of config.json."""
    found = reader.token_ids(key) or (default,)
    return found[0]


def edge_length(
    settings: ConfigReader, key: str, inner: str, default: int, *, number: bool = True
) -> int:
    """A length that is written as {"longest_edge": 2048}, or as a number. `number`: whether
    transformers reads a number so, too."""
    given = settings.raw(key)
    value = default if given is None else given.get(inner) if isinstance(given, dict) else given
    others = () if not isinstance(given, dict) else (given[one] for one in given if one != inner)
    is_other = (type(given) is int and not number) or any(one is not None for one in others)
    if is_other or type(value) is not int or not 1 <= value <= MAX_WIDTH:
        raise settings.error(key, given, f'{{"{inner}": a whole number}}', {inner: default})
    return value


def has_sides(settings: ConfigReader, key: str) -> bool:
    """Whether a size is written as {"height": 336, "width": 336}."""
    value = settings.raw(key)
    return isinstance(value, dict) and None not in (value.get("height"), value.get("width"))


def tile_size(settings: ConfigReader, key: str, default: int) -> Size:
    """A height and a width; one number is both."""
    value = settings.raw(key)
    if isinstance(value, dict):
        value = (value.get("height"), value.get("width"))
    else:
        side = default if value is None else value
        value = (side, side)
    if not all(type(one) is int and 1 <= one <= MAX_WIDTH for one in value):
        raise settings.error(key, value, "a height and a width", default)
    return value[0], value[1]


def check_sides(settings: ConfigReader, **sides: int) -> None:
    """Raises CheckpointError for an image processor whose patches are not the encoder's."""
    for key, side in sides.items():
        if settings.size(key, MAX_WIDTH, example=side, default=side) != side:
            raise settings.error(key, settings.raw(key), "equal to the encoder's", side)


def normalisation(
    settings: ConfigReader, resample: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> dict[str, Any]:
    """The fields of `Resizing`, with these defaults. Raises UnsupportedModelError for an image
    processor that leaves out a part of the work."""
    for flag in ("do_resize", "do_rescale", "do_normalize"):
        if not settings.flag(flag, True):
            raise UnsupportedModelError(f"preprocessor_config.json: {flag} must be true")
    if settings.flag("do_pad", False) and settings.text("image_processor_type") in (
        "LlavaImageProcessor",
        "LlavaImageProcessorFast",
    ):
        raise UnsupportedModelError("preprocessor_config.json: do_pad must be false")
    found = _three(settings, "image_std", std)
    if 0.0 in found:
        raise settings.error("image_std", list(found), "three numbers other than 0", list(std))
    return {
        "resample": settings.count("resample", 5, default=resample),
        "mean": _three(settings, "image_mean", mean),
        "std": found,
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

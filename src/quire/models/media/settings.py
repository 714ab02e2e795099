"""The settings of a checkpoint's image processor, which are a file next to config.json.

They are stored as a key of config.json, like the choice of transformers, so that the front end and
the worker use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from quire.errors import CheckpointError, ConfigError
from quire.images.config import PROCESSOR_KWARGS
from quire.models.base import HfConfig
from quire.models.config_reader import ConfigReader

MARK = "quire_image_processor"
_VIDEO = "video_processor"
_FILES = ("preprocessor_config.json", "processor_config.json")
_VIDEO_FILE = "video_preprocessor_config.json"
_MAX_BYTES = 1 << 20
OF_REQUESTS = frozenset({
    "size", "min_pixels", "max_pixels", "do_image_splitting", "crop_to_patches", "min_patches",
    "max_patches", "max_soft_tokens", "fps",
})  # fmt: skip
"""The settings that a request may change: how large images are, into how many tiles they are
divided, and how many frames of a video are one second."""


_PIXEL_KEYS = (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
"""The fewest and the most pixels of an image: names in `size`, and keys of their own."""


def with_image_processor(hf_config: HfConfig, path: Path) -> dict[str, Any]:
    """config.json with the settings, if the checkpoint has any."""
    own, found = _read(path / _FILES[0]), _read(path / _FILES[1])
    video = found.get(_VIDEO) or _read(path / _VIDEO_FILE)
    if "image_processor" not in found:
        found |= own
    if video:
        found[_VIDEO] = video
    return {**hf_config, MARK: found} if found else dict(hf_config)


def image_settings(hf_config: HfConfig) -> ConfigReader:
    """The settings; an empty reader if there are none."""
    return ConfigReader(hf_config.get(MARK) or {}, "preprocessor_config.json")


def video_settings(reader: ConfigReader) -> ConfigReader:
    """The settings for videos: those of images, as far as videos have none of their own. `reader`:
    of config.json."""
    found = reader.raw(MARK) or {}
    own = found.get(_VIDEO)
    if not isinstance(own, dict):
        return ConfigReader(found, _FILES[0])
    return ConfigReader({**found, **own}, _VIDEO_FILE)


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path} is larger than {_MAX_BYTES} bytes")
        found = msgspec.json.decode(path.read_bytes())
    except OSError:
        return {}
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold an object")
    inner = found.get("image_processor") or found.get("feature_extractor")
    found = {**found, **inner} if isinstance(inner, dict) else found
    # Image processors of transformers take null as false, unlike configurations.
    return {
        key: False if one is None and key.startswith("do_") else one for key, one in found.items()
    }


def with_processor_kwargs(hf_config: HfConfig, kwargs: Any) -> dict[str, Any]:
    """config.json with the settings that a caller changes. Raises ConfigError."""
    if kwargs is None:
        return dict(hf_config)
    if not isinstance(kwargs, Mapping):
        raise ConfigError(f"{PROCESSOR_KWARGS} must be a dict of settings of the image processor")
    found = hf_config.get(MARK) or {}
    changed = _changed(found, kwargs)
    if isinstance(video := found.get(_VIDEO), dict):
        changed[_VIDEO] = _changed(video, kwargs)
    return {**hf_config, MARK: changed}


def _changed(settings: dict[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with changes; null changes nothing. A number of pixels in a new `size` (Qwen-VL)
    takes the place of the key that the file has for it."""
    kwargs = {key: one for key, one in kwargs.items() if one is not None}
    size = kwargs.get("size")
    names = size.keys() if isinstance(size, Mapping) else ()
    replaced = {key for edge, key in _PIXEL_KEYS if edge in names or key in names}
    return {**{key: one for key, one in settings.items() if key not in replaced}, **kwargs}

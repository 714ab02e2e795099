"""`hf_overrides`: what a user changes of a checkpoint's config.json, as a dict or as a function.

Called once config.json is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from quire.errors import ConfigError, quoted

HFOverrides = Mapping[str, Any] | Callable[[Any], Any] | None


class HFConfig:
    """config.json with its keys as attributes, for functions that were written for the
    `PretrainedConfig` of `transformers`. A missing key is a missing attribute."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, HFConfig(value) if _is_part(name, value) else value)

    def update(self, values: Mapping[str, Any]) -> None:
        """Sets attributes."""
        vars(self).update(values)

    def get_text_config(self, decoder: bool = False) -> Any:
        """The part about the text model, or all of it where there is one model."""
        del decoder
        return getattr(self, "text_config", self)

    def to_dict(self) -> dict[str, Any]:
        """The configuration in the form of config.json."""
        return {
            name: value.to_dict() if isinstance(value, HFConfig) else value
            for name, value in vars(self).items()
        }


class HFValues(dict[str, Any]):
    """config.json as a dict whose keys are attributes too, for scripts that read
    `model_config.hf_config` as the `PretrainedConfig` of `transformers`."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"config.json has no {name!r}")
        value = self[name]
        return HFValues(value) if isinstance(value, dict) else value

    def get_text_config(self, decoder: bool = False) -> Any:
        """The part about the text model, or all of it where there is one model."""
        del decoder
        return self.text_config if isinstance(self.get("text_config"), dict) else self

    def to_dict(self) -> dict[str, Any]:
        """A copy."""
        return dict(self)


def overridden(values: dict[str, Any], overrides: HFOverrides) -> dict[str, Any]:
    """config.json with a dict laid over it, nested objects merged key by key; or what a function
    makes of it. Raises ConfigError for a function that gives no configuration back."""
    if callable(overrides):
        return _called(overrides, values)
    return _merged(values, overrides or {})


def _called(function: Callable[[Any], Any], values: dict[str, Any]) -> dict[str, Any]:
    try:
        found = function(HFConfig(values))
    except Exception as error:
        raise ConfigError(
            f"hf_overrides: the function failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, HFConfig):
        raise ConfigError(
            f"hf_overrides: the function must return the configuration that it is given, got "
            f"{quoted(found)}"
        )
    changed = found.to_dict()
    try:
        json.dumps(changed)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"hf_overrides: the function has set what JSON cannot hold: {error}"
        ) from None
    return changed


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _is_part(name: str, value: object) -> bool:
    is_plain = name == "quantization_config"  # a dict in transformers too
    return isinstance(value, dict) and name.endswith("_config") and not is_plain
